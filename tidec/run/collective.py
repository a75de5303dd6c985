"""All-gathers and reduce-scatters of one plan, call after call, in one process of a job.

A `Ring` has the two landings of an all-gather plan; call e lands in bank e mod 2. Whoever is gathered holds its landing until it lets it go; while
the next bank is held, the ring is full. Landings are acquired and released in the order of calls, as the plan's compute stream has them: one that
is let go before an earlier one stays taken until that one is let go too.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

from tidec.inputs.ask import Collective
from tidec.plan.ir import Plan
from tidec.run.arena import TORCH_DTYPES, Landing, Shard
from tidec.run.count import Account, Planned, counted

BANKS = 2


class Node(Protocol):
    """A rank of a program: tidec_rt.Node. Addresses are ints; every function raises RuntimeError with the library's message."""

    def handle(self) -> bytes: ...
    def connect(self, handles: list[bytes]) -> None: ...
    def arena(self) -> tuple[int, int]: ...
    def gather(self, call: int, shard: int, stream: int = 0) -> None: ...
    def acquire(self, call: int, stream: int = 0) -> int: ...
    def release(self, call: int, stream: int = 0) -> None: ...
    def reduce(self, call: int, gradients: list[int], out: int, alpha: float, accumulate: bool, stream: int = 0) -> None: ...
    def counts(self, call: int) -> list[int]: ...
    def close(self) -> None: ...


class Ring:
    """The landings of one all-gather plan.

    rank: of the plan, whose node this is.  is_poisoned: a landing is filled with NaN when it is let go.
    """

    def __init__(self, plan: Plan, node: Node, *, rank: int, is_poisoned: bool = False):
        assert plan.collective is Collective.ALL_GATHER
        self.plan, self.node, self._is_poisoned, self._planned = plan, node, is_poisoned, Planned(plan, rank)
        self.calls = 0
        # Calls that were gathered and are not released yet, in order: the landing once it is acquired, and whether it was let go.
        self._open: dict[int, bool] = {}
        self._accounts: dict[int, Account] = {}
        self._landings: dict[int, Landing] = {}
        self._made: dict[int, Landing] = {}
        # A call may begin before the one before it has read its shard.
        self._shards = (Shard(plan, arena=node.arena()[0]), *(Shard(plan) for _ in range(BANKS - 1)))

    @property
    def is_full(self) -> bool:
        """Whether the bank of the next call is held."""
        return self.calls - BANKS in self._open

    def is_next_bank_of(self, call: int) -> bool:
        """Whether the next call lands where that one did."""
        return call == self.calls - BANKS

    def gather(self, shards: list[torch.Tensor], account: Account) -> int:
        """Start the next call with the padded shards of all parameters; returns its number. Once it is over, it is in the account."""
        assert not self.is_full
        call = self.calls
        shard = self._shards[call % BANKS]
        shard.pack(shards)
        self.node.gather(call, shard.address)
        self.calls = call + 1
        self._open[call], self._accounts[call] = False, account
        return call

    def acquire(self, call: int) -> Landing:
        """The landing of a call, once everything of it has arrived. May come more than once."""
        for earlier in list(self._open):
            if earlier <= call and earlier not in self._landings:
                self._landings[earlier] = self._landing(self.node.acquire(earlier))
        return self._landings[call]

    def let_go(self, call: int) -> None:
        """Nobody reads the landing of a call any more."""
        assert self._open[call] is False, call
        self.acquire(call)
        self._open[call] = True
        if self._is_poisoned:
            self._landings[call].poison()
        for earlier, is_over in list(self._open.items()):
            if not is_over:
                break
            self.node.release(earlier)
            self._accounts.pop(earlier).add(counted(self.node.counts(earlier)), self._planned.of(earlier))
            del self._open[earlier], self._landings[earlier]

    def _landing(self, address: int) -> Landing:
        if address not in self._made:
            self._made[address] = Landing(self.plan, address)
        return self._made[address]


class Reducer:
    """The reduce-scatters of one plan. rank: of the plan, whose node this is."""

    def __init__(self, plan: Plan, node: Node, *, rank: int):
        assert plan.collective is Collective.REDUCE_SCATTER
        self.plan, self.node, self.calls, self._planned = plan, node, 0, Planned(plan, rank)
        self._zeros = torch.empty(0, dtype=TORCH_DTYPES[plan.gradient_dtype])

    def reduce(self, gradients: Mapping[int, int], out: torch.Tensor | int, alpha: float, account: Account, *, accumulate: bool = False) -> None:
        """Sum gradients into this rank's packed fp32 row, and return once it is there, and the call in the account.

        gradients: addresses by parameter; a trainable one that is missing counts as zero.  out: E fp32 values, or their address.
        """
        addresses = [gradients.get(i) or self._zero_gradient() if p.is_trainable else 0 for i, p in enumerate(self.plan.layout.params)]
        call = self.calls
        self.calls = call + 1
        self.node.reduce(call, addresses, out if isinstance(out, int) else out.data_ptr(), alpha, accumulate)
        account.add(counted(self.node.counts(call)), self._planned.of(call))

    def _zero_gradient(self) -> int:
        if not self._zeros.numel():
            self._zeros = torch.zeros(max(1, *(p.real_elems for p in self.plan.layout.params)), dtype=self._zeros.dtype)
        return self._zeros.data_ptr()
