"""All-gathers and reduce-scatters of one plan, call after call, in one process of a job.

A `Ring` has the landings of an all-gather plan, two or one, and calls land in them in turn. Whoever is gathered holds its landing until it lets it go; while
the next bank is held, the ring is full. Landings are acquired and released in the order of calls, as the plan's compute stream has them: one that
is let go before an earlier one stays taken until that one is let go too.

On a GPU every call is enqueued on the stream that is the current one, and the host goes on: a landing that was acquired may be read on that stream, one
that was let go has been read on it by then, and gradients may be freed on it. What another stream needs of that, it waits for.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from tidec.inputs.ask import Collective
from tidec.plan.ir import Plan
from tidec.run.arena import TORCH_DTYPES, Landing, Shard
from tidec.run.count import Account, Planned, counted
from tidec.run.device import CPU, Device
from tidec.run.loan import Swap, swap_by_torch


class Node(Protocol):
    """A rank of a program: tidec_rt.Node. Addresses are ints; every function raises RuntimeError with the library's message."""

    def handle(self) -> bytes: ...
    def connect(self, handles: list[bytes]) -> None: ...
    def arena(self) -> tuple[int, int]: ...
    def gather(self, call: int, shard: int, stream: int = 0) -> None: ...
    def acquire(self, call: int, stream: int = 0) -> int: ...
    def release(self, call: int, stream: int = 0) -> None: ...
    def reduce(self, call: int, gradients: list[int], out: int, alpha: float, accumulate: bool, stream: int = 0) -> None: ...
    def wait(self, deadline_ms: int) -> None: ...
    def counts(self, call: int) -> list[int]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a plan runs, beside its node. begun: told of a call that goes on while the host does, and of the mark with which it is over."""

    device: Device = CPU
    swap: Swap = swap_by_torch
    begun: Callable[[torch.Event, str], None] | None = None


class Ring:
    """The landings of one all-gather plan.

    rank: of the plan, whose node this is.  is_poisoned: a landing is filled with NaN when it is let go.
    """

    def __init__(self, plan: Plan, node: Node, *, rank: int, place: Place = Place(), is_poisoned: bool = False):
        assert plan.collective is Collective.ALL_GATHER
        self.plan, self.node, self._place, self._is_poisoned, self._planned = plan, node, place, is_poisoned, Planned(plan, rank)
        self.calls, self._name = 0, f"of plan {plan.digest[:12]}"
        # Calls that were gathered and are not released yet, in order: the landing once it is acquired, and whether it was let go.
        self._open: dict[int, bool] = {}
        self._accounts: dict[int, Account] = {}
        self._landings: dict[int, Landing] = {}
        self._made: dict[int, Landing] = {}
        # When a call was acquired, as long as it is the last one of its shard; and when one was let go that cannot be released yet.
        self._acquired: dict[int, torch.Event | None] = {}
        self._gone: dict[int, torch.Event | None] = {}
        # By their last calls. A group that no other shares the ring with is done with each call before the next one, and needs one.
        self._shards = {-1: Shard(plan, arena=node.arena()[0], device=place.device.of)}

    @property
    def is_full(self) -> bool:
        """Whether the bank of the next call is held."""
        return self.calls - self.plan.landings in self._open

    def is_next_bank_of(self, call: int) -> bool:
        """Whether the next call lands where that one did."""
        return call == self.calls - self.plan.landings

    def gather(self, shards: list[torch.Tensor], account: Account, *, packing: torch.Stream | None = None, moving: torch.Stream | None = None) -> tuple[int, torch.Event | None]:
        """Start the next call with the padded shards of all parameters; returns its number, and when the shards have been read.

        packing, moving: the streams on which the shards are read and the call begins.  Once the call is over, it is in the account.
        """
        assert not self.is_full
        call, device = self.calls, self._place.device
        last = min((c for c in self._shards if c not in self._open), default=None)
        with device.on(packing):
            shard = Shard(self.plan, device=device.of) if last is None else self._shards.pop(last)
            if last is not None:
                device.wait(self._acquired.pop(last, None), packing)
            shard.pack(shards)
        packed = device.mark(packing)
        device.wait(packed, moving)
        self.node.gather(call, shard.address, device.stream(moving))
        self._shards[call] = shard
        self.calls = call + 1
        self._open[call], self._accounts[call] = False, account
        return call, packed

    def acquire(self, call: int) -> Landing:
        """The landing of a call, once everything of it has arrived. May come more than once."""
        device = self._place.device
        if call in self._landings:
            device.wait(self._acquired[call])
        for earlier in list(self._open):
            if earlier <= call and earlier not in self._landings:
                self._landings[earlier] = self._landing(self.node.acquire(earlier, device.stream()))
                self._acquired[earlier] = _begun(self._place, f"all-gather {earlier} {self._name}")
        return self._landings[call]

    def let_go(self, call: int) -> None:
        """Nobody reads the landing of a call any more, but what the current stream holds by now."""
        assert self._open[call] is False, call
        self.acquire(call)
        self._open[call] = True
        device = self._place.device
        if self._is_poisoned:
            self._landings[call].poison()
        if next(iter(self._open)) != call:
            self._gone[call] = device.mark()
        for earlier, is_over in list(self._open.items()):
            if not is_over:
                break
            device.wait(self._gone.pop(earlier, None))
            self.node.release(earlier, device.stream())
            self._accounts.pop(earlier).add(counted(self.node.counts(earlier)), self._planned.of(earlier))
            del self._open[earlier], self._landings[earlier]

    def _landing(self, address: int) -> Landing:
        if address not in self._made:
            self._made[address] = Landing(self.plan, address, device=self._place.device.of, swap=self._place.swap)
        return self._made[address]


class Reducer:
    """The reduce-scatters of one plan. rank: of the plan, whose node this is."""

    def __init__(self, plan: Plan, node: Node, *, rank: int, place: Place = Place()):
        assert plan.collective is Collective.REDUCE_SCATTER
        self.plan, self.node, self._place, self.calls, self._planned = plan, node, place, 0, Planned(plan, rank)
        self._name = f"of plan {plan.digest[:12]}"
        self._zeros = torch.empty(0, dtype=TORCH_DTYPES[plan.gradient_dtype], device=place.device.of)

    def reduce(self, gradients: Mapping[int, int], out: torch.Tensor | int, alpha: float, account: Account, *, accumulate: bool = False) -> torch.Event | None:
        """Sum gradients into this rank's packed fp32 row; what the current stream holds afterwards comes once it is there, as the mark that is returned. The call is in the account.

        gradients: addresses by parameter; a trainable one that is missing counts as zero.  out: E fp32 values, or their address.
        """
        params = self.plan.layout.params
        assert all(address or not params[i].real_elems for i, address in gradients.items()), gradients
        addresses = [gradients.get(i) or self._zero_gradient() if p.is_trainable else 0 for i, p in enumerate(params)]
        call = self.calls
        self.calls = call + 1
        self.node.reduce(call, addresses, out if isinstance(out, int) else out.data_ptr(), alpha, accumulate, self._place.device.stream())
        summed = _begun(self._place, f"reduce-scatter {call} {self._name}")
        account.add(counted(self.node.counts(call)), self._planned.of(call))
        return summed

    def _zero_gradient(self) -> int:
        if not self._zeros.numel():
            self._zeros = torch.zeros(max(1, *(p.real_elems for p in self.plan.layout.params)), dtype=self._zeros.dtype, device=self._zeros.device)
        return self._zeros.data_ptr()


def _begun(place: Place, what: str) -> torch.Event | None:
    """Marks what the current stream holds by now, a call at its end."""
    mark = place.device.mark()
    if mark is not None and place.begun is not None:
        place.begun(mark, what)
    return mark
