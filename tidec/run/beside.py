"""One collective by its plan and as stock FSDP2 does it, on the same tensors of one rank, and whether both give the same bits.

N ranks, p parameter. Stock's all-gather is torch's, into one buffer, and the copy of every parameter out of it; its reduce-scatter packs all gradients in fp32
(`_chunk_cat`) and is torch's of that. Buffers of stock's are there before; what FSDP2 copies into the gather buffer is outside, unless parameters are cast.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from tidec.inputs.ask import Collective
from tidec.interpret.bits import carry_out, zero_ranges
from tidec.plan.arena import stored_bytes, stored_starts
from tidec.plan.ir import Plan
from tidec.plan.layout import PACK_ITEM_BYTES
from tidec.run.arena import TORCH_DTYPES, tensor_at
from tidec.run.collective import Node
from tidec.run.compare import Difference, first_difference
from tidec.run.made import Kind, make, values
from tidec.run.timing import finish

# torch 2.13 has other names for its two collectives, and warns of those before.
_ALL_GATHER, _REDUCE_SCATTER = (getattr(dist, new, None) or getattr(dist, old) for new, old in (
    ("all_gather_single", "all_gather_into_tensor"), ("reduce_scatter_single", "reduce_scatter_tensor")))
# Bytes of all ranks' packed rows up to which sums of more than two ranks are held against the reference.
_CHEAP_BYTES = 4 << 20
_SPOILT = 0xFF


@dataclass(frozen=True, slots=True)
class Here:
    """This rank. control: a process group of the host's.  stream: of the GPU, 0 on the host.  deadline_ms: of every wait of a node."""

    rank: int
    device: torch.device
    control: dist.ProcessGroup
    stream: int
    deadline_ms: int
    seed: int

    @property
    def is_cuda(self) -> bool:
        """Whether tensors are on a GPU."""
        return self.device.type == "cuda"

    def meet(self, node: Node) -> None:
        """All ranks have come here, and all that was enqueued is over, the node's own too. Raises R001, and what the node says."""
        if self.is_cuda:
            finish(self.deadline_ms / 1000, lambda: node.wait(1))
            node.wait(self.deadline_ms)
        dist.barrier(self.control)

    def generator(self) -> torch.Generator:
        """Random numbers, others on every rank."""
        return torch.Generator(self.device).manual_seed(1000003 * self.seed + self.rank)


class Gather:
    """An all-gather. checked: what its bits are held against."""

    checked = "stock"

    def __init__(self, plan: Plan, node: Node, here: Here):
        self._plan, self._node, self._here, self._calls = plan, node, here, 0
        layout, dtype = plan.layout, TORCH_DTYPES[plan.gathered[0]]
        self.dtype, self.size_bytes = plan.gathered[0], layout.landing_bytes
        self._shard = torch.zeros(max(1, stored_bytes(layout, plan.stored)), dtype=torch.uint8, device=here.device)
        random = here.generator()
        self._parts, self._sizes = [], [p.shard_elems for p in layout.params]
        for at, p, stored in zip(stored_starts(layout, plan.stored), layout.params, plan.stored):
            part = self._shard[at : at + p.shard_elems * stored.item_bytes].view(TORCH_DTYPES[stored])
            num = max(0, min(p.shard_elems, p.real_elems - here.rank * p.shard_elems))
            part[:num] = torch.randn(num, generator=random, device=here.device).to(part.dtype)
            self._parts.append(part)
        num_elems = sum(self._sizes)
        self._given = torch.empty(num_elems, dtype=dtype, device=here.device) if plan.has_cast else self._shard[: num_elems * dtype.itemsize].view(dtype)
        self._into = self._given.split(self._sizes)
        self._whole = torch.empty(layout.ranks * num_elems, dtype=dtype, device=here.device)
        self._outs = [torch.empty(layout.ranks, size, dtype=dtype, device=here.device) for size in self._sizes]

    def stock(self) -> None:
        """torch's all-gather and the copy-out."""
        if self._plan.has_cast:
            torch._foreach_copy_(self._into, self._parts)
        _ALL_GATHER(self._whole, self._given)
        torch.split_with_sizes_copy(self._whole.view(self._plan.ranks, -1), self._sizes, dim=1, out=self._outs)

    def plan(self) -> None:
        """The plan's, and the landing is let go at once."""
        self._begin()
        self._end()

    def _begin(self) -> int:
        call = self._calls
        self._node.gather(call, self._shard.data_ptr(), self._here.stream)
        return self._node.acquire(call, self._here.stream)

    def _end(self) -> None:
        self._node.release(self._calls, self._here.stream)
        self._calls += 1

    def check(self) -> Difference | None:
        """Make one call of each, over memory that is spoilt first, and compare all of the landing."""
        self._here.meet(self._node)
        for tensor in (self._whole, *self._outs):
            tensor.view(torch.uint8).fill_(_SPOILT)
        _spoil_arena(self._plan, self._node, self._here)
        self._here.meet(self._node)
        self.stock()
        at = self._begin()
        landing, wanted = _memory(at, self.size_bytes, self._here), torch.cat([out.view(-1) for out in self._outs]).view(torch.uint8)
        found = None if torch.equal(landing, wanted) else _first(self._plan, self._here, landing, wanted)
        self._end()
        self._here.meet(self._node)
        return _of_all(found, self._here)


class Reduce:
    """A reduce-scatter. checked: what its bits are held against.

    Up to two ranks: any order of the sum gives the same bits, so stock's. More: the reference, whose order is the plan's, where that is cheap; else numbers whose sums
    are exact in every order, and stock's again. NOTE: a sum that is zero may be -0 of stock's, and is +0 of a plan's.
    """

    def __init__(self, plan: Plan, node: Node, here: Here):
        self._plan, self._node, self._here, self._calls = plan, node, here, 0
        layout, self.dtype = plan.layout, plan.gradient_dtype
        self.size_bytes = plan.ranks * layout.packed_elems * self.dtype.item_bytes
        self._is_cheap = plan.ranks > 2 and plan.ranks * layout.packed_elems * PACK_ITEM_BYTES <= _CHEAP_BYTES
        self.checked = "stock" if plan.ranks <= 2 else "the reference" if self._is_cheap else "stock, of exact sums"
        random = here.generator()
        self._gradients = [self._gradient(i, p.real_elems, random).view(p.rows, p.row_elems) if p.is_trainable else None for i, p in enumerate(layout.params)]
        self._addresses = [0 if g is None else g.data_ptr() for g in self._gradients]
        self._trainable = [g for g in self._gradients if g is not None]
        self._packed = torch.empty(plan.ranks, layout.packed_elems, device=here.device)
        self._own, self._out = (torch.empty(layout.packed_elems, device=here.device) for _ in range(2))
        self._wanted: tuple[np.ndarray, ...] = ()

    def _gradient(self, i: int, num: int, random: torch.Generator) -> torch.Tensor:
        dtype, device = TORCH_DTYPES[self.dtype], self._here.device
        if self._is_cheap:
            raw = values(num, self.dtype, (0, 0, self._here.rank, i), Kind.NUMBERS).view(np.uint8)
            return torch.from_numpy(raw.copy()).view(dtype).to(device)
        if self._plan.ranks > 2:
            return torch.randint(-63, 64, (num,), generator=random, device=device).to(dtype)
        return torch.randn(num, generator=random, device=device).to(dtype)

    def stock(self) -> None:
        """Packing, and torch's reduce-scatter."""
        torch._chunk_cat(self._trainable, dim=0, num_chunks=self._plan.ranks, out=self._packed)
        _REDUCE_SCATTER(self._own, self._packed.view(-1))

    def plan(self) -> None:
        """The plan's."""
        self._node.reduce(self._calls, self._addresses, self._out.data_ptr(), 1.0, False, self._here.stream)
        self._calls += 1

    def check(self) -> Difference | None:
        """Make one call of each, over memory that is spoilt first, and compare this rank's rows; padding is left out."""
        self._here.meet(self._node)
        for tensor in (self._packed, self._own, self._out):
            tensor.view(torch.uint8).fill_(_SPOILT)
        _spoil_arena(self._plan, self._node, self._here)
        self._here.meet(self._node)
        self.stock()
        self.plan()
        self._here.meet(self._node)
        got = _without_padding(self._plan, self._here.rank, self._out)
        if self._is_cheap:
            return self._against_reference(got)
        wanted = _without_padding(self._plan, self._here.rank, self._own + 0.0)
        is_equal = torch.equal(got.view(torch.int32), wanted.view(torch.int32))
        return _of_all(None if is_equal else _first(self._plan, self._here, got.view(torch.uint8), wanted.view(torch.uint8)), self._here)

    def _against_reference(self, got: torch.Tensor) -> Difference | None:
        """What rank 0 finds, which has the reference carry the plan out."""
        every = _gathered(got.cpu().view(torch.uint8).numpy(), self._here)
        found = None
        if self._here.rank == 0:
            if not self._wanted:
                outputs = carry_out(self._plan, make(self._plan, calls=1, kind=Kind.NUMBERS))[0]
                self._wanted = tuple(_without_padding(self._plan, r, torch.from_numpy(raw).view(torch.float32)).view(torch.uint8).numpy() for r, raw in enumerate(outputs))
            found = first_difference(self._plan, (tuple(every),), (self._wanted,))
        return _of_all(found, self._here)


def beside(plan: Plan, node: Node, here: Here) -> Gather | Reduce:
    """Both ways of a plan's collective. node: connected, and of this plan."""
    return Gather(plan, node, here) if plan.collective is Collective.ALL_GATHER else Reduce(plan, node, here)


def _without_padding(plan: Plan, rank: int, row: torch.Tensor) -> torch.Tensor:
    """A copy of a rank's packed row, with 0 where it belongs to no parameter."""
    row = row.clone()
    for p in plan.layout.params:
        num = max(0, min(p.packed_elems, p.real_elems - rank * p.shard_elems))
        row[p.packed_start + num : p.packed_start + p.packed_elems] = 0.0
    return row


def _spoil_arena(plan: Plan, node: Node, here: Here) -> None:
    """Fill this rank's temporary memory, all of it that need not be 0 between calls."""
    address, num_bytes = node.arena()
    if not num_bytes:
        return
    memory, at = _memory(address, num_bytes, here), 0
    for start, size in (*sorted(zero_ranges(plan)), (num_bytes, 0)):
        memory[at:start].fill_(_SPOILT)
        at = start + size


def _memory(address: int, num_bytes: int, here: Here) -> torch.Tensor:
    """Bytes that a node has, as a tensor."""
    if not here.is_cuda:
        return tensor_at(address, num_bytes, torch.uint8)

    class Held:
        __cuda_array_interface__ = {"shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 3}

    return torch.as_tensor(Held(), device=here.device)


def _first(plan: Plan, here: Here, got: torch.Tensor, wanted: torch.Tensor) -> Difference | None:
    """Where this rank's outputs differ first; of NaNs the bits do not count in a sum."""
    nothing = np.zeros(0, np.uint8)
    rows = [tuple(x.cpu().numpy() if r == here.rank else nothing for r in range(plan.ranks)) for x in (got, wanted)]
    return first_difference(plan, (rows[0],), (rows[1],))


def _of_all(found: Difference | None, here: Here) -> Difference | None:
    """The first that any rank found."""
    return next((f for f in _gathered(found, here) if f is not None), None)


def _gathered(mine: object, here: Here) -> list:
    every: list = [None] * here.control.size()
    dist.all_gather_object(every, mine, group=here.control)
    return every
