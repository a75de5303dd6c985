"""Landings and shards of a node as tensors, and how a landing is lent to the storage that FSDP2 keeps for a parameter.

FSDP2 keeps one storage a parameter for its unsharded values, empty while the parameter is sharded. While a landing is lent, that storage has the
landing's address; nothing is copied, and views that autograd saved follow, since they share the storage.
"""
from __future__ import annotations

import torch

from tidec.inputs.signature import Dtype
from tidec.plan.arena import RESIDENT_SHARD, stored_bytes, stored_starts
from tidec.plan.ir import Plan
from tidec.run.device import CPU
from tidec.run.loan import Swap, swap_by_torch

TORCH_DTYPES = {Dtype.BF16: torch.bfloat16, Dtype.FP16: torch.float16, Dtype.FP32: torch.float32, Dtype.FP64: torch.float64}
# In bf16, fp16 and fp32 these bits are NaN.
POISON = 0x7FC0


def tensor_at(address: int, num_elems: int, dtype: torch.dtype, device: torch.device = CPU.of) -> torch.Tensor:
    """A 1-D tensor over memory that somebody else keeps, with a storage of its own that begins and ends with it.

    num_elems: at least 1.
    NOTE: FSDP2 rebuilds parameters at the absolute storage offset 0, so a view of one large tensor would not do. A tensor that is made while inference
    mode is on could not be written to later.
    """
    assert num_elems >= 1, num_elems
    with torch.inference_mode(False):
        storage = torch._C._construct_storage_from_data_pointer(address, device, num_elems * dtype.itemsize)
        return torch.empty(0, dtype=dtype, device=device).set_(storage, 0, (num_elems,), (1,))


class Shard:
    """Where this rank's shards of a group are packed for its all-gather, in the types that the plan takes them in: those they are gathered in, but for
    a plan that casts.

    arena: the address of this rank's, which has a place for one shard, but for a plan that casts; `None` = in memory of its own.
    """

    @torch.inference_mode(False)        # what is made while it is on could not be written to later
    def __init__(self, plan: Plan, *, arena: int | None = None, device: torch.device = CPU.of):
        starts, num_bytes = stored_starts(plan.layout, plan.stored), max(1, stored_bytes(plan.layout, plan.stored))
        place = next((r for r in plan.arena.regions if r.name == RESIDENT_SHARD and r.bytes >= num_bytes), None)
        is_inside = arena is not None and place is not None
        self._memory = (
            tensor_at(arena + place.offset, num_bytes, torch.uint8, device) if is_inside else torch.zeros(num_bytes, dtype=torch.uint8, device=device))
        self._parts = [
            self._memory[at : at + p.shard_elems * dtype.item_bytes].view(TORCH_DTYPES[dtype]) for at, p, dtype in zip(starts, plan.layout.params, plan.stored)
        ]

    @property
    def address(self) -> int:
        return self._memory.data_ptr()

    def pack(self, shards: list[torch.Tensor]) -> None:
        """Copy the padded shards of all parameters, 1-D, in the group's order; each is cast where the plan takes another type, as FSDP2 casts."""
        torch._foreach_copy_(self._parts, shards)


class Landing:
    """One landing of an all-gather: a tensor a parameter, padding counted, each with a storage of its own."""

    def __init__(self, plan: Plan, address: int, *, device: torch.device = CPU.of, swap: Swap = swap_by_torch):
        layout, self._swap = plan.layout, swap
        self._addresses = tuple(address + layout.landing_offset(i, 0) for i in range(len(layout.params)))
        self._tensors = tuple(
            tensor_at(address + layout.landing_offset(i, 0), layout.ranks * p.shard_elems, TORCH_DTYPES[dtype], device) if p.shard_elems else None
            for i, (p, dtype) in enumerate(zip(layout.params, plan.gathered))
        )

    def is_lent(self, i: int, output: torch.Tensor) -> bool:
        """Whether the tensor's storage is this landing's part of parameter i, as where lending a group was interrupted and is begun again."""
        return output.untyped_storage().size() > 0 and output.data_ptr() == self._addresses[i]

    def lend(self, i: int, output: torch.Tensor) -> bool:
        """Have the tensor's empty storage be this landing's part of parameter i. Returns whether there is anything to lend."""
        part = self._tensors[i]
        if part is None:
            return False
        storage = output.untyped_storage()
        assert storage.size() == 0, storage.size()
        self._swap(storage, part.untyped_storage())
        return True

    def take_back(self, i: int, output: torch.Tensor) -> None:
        """The tensor's storage is empty again, and the landing whole."""
        part = self._tensors[i]
        assert part is not None
        self._swap(output.untyped_storage(), part.untyped_storage())

    def copy_to(self, i: int, output: torch.Tensor) -> None:
        """Copy parameter i to a tensor whose storage is its own."""
        part = self._tensors[i]
        assert part is not None and output.numel() == part.numel()
        tensor_at(output.data_ptr(), output.numel(), output.dtype, output.device).copy_(part)

    def fill(self, i: int, values: torch.Tensor) -> int:
        """Copy a gradient, contiguous and in the gathered type, to where parameter i lay; gives its address."""
        part = self._tensors[i]
        assert part is not None and values.numel() <= part.numel()
        part[: values.numel()].copy_(values.reshape(-1))
        return part.data_ptr()

    def poison(self) -> None:
        """Fill all of it with NaN."""
        for part in self._tensors:
            if part is not None:
                part.view(torch.int16 if part.itemsize == 2 else torch.int32).fill_(POISON if part.itemsize == 2 else POISON << 16 | POISON)


def plain(values: torch.Tensor) -> torch.Tensor:
    """Values that stand one after another at the tensor's address, as they are: none to be negated or conjugated when they are read, none of another tensor that has yet to arrive."""
    if type(values) is torch.Tensor:
        return values.resolve_conj().resolve_neg().contiguous()
    own = torch.empty(values.shape, dtype=values.dtype, device=values.device)
    return own.copy_(values)


def emptied(output: torch.Tensor) -> None:
    """Free a tensor's storage; it keeps its shape."""
    storage = output.untyped_storage()
    if storage.size():
        storage.resize_(0)


def made_own(output: torch.Tensor, landing: Landing, i: int) -> None:
    """Take parameter i's part back and leave a copy of its values in a storage of the tensor's own.

    NOTE: copied through another tensor over the same memory, since a copy to this one would count as a change of the parameter, and saved tensors would
    be refused.
    """
    landing.take_back(i, output)
    output.untyped_storage().resize_(output.numel() * output.itemsize)
    landing.copy_to(i, output)
