"""One step of one rank: an op with its bytes, counters and terms resolved.

n node, j lane.
"""
from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Union

from tidec.inputs.signature import Dtype
from tidec.schedule.program import Every, Op, OpKind

Lane = Union[int, Every]


class Space(Enum):
    """Which memory an offset counts in."""

    ARENA = "arena"    # temporary buffers and the landing, at the same offsets on every rank
    SHARD = "shard"    # the resident shard, packed
    GRAD = "grad"      # one parameter's unsharded gradient, a contiguous (D, K)
    OUT = "out"        # the packed fp32 output row


@dataclass(frozen=True, slots=True)
class Place:
    """A byte of a rank's memory. param: whose gradient, -1 in other spaces. lane: `ALL` is the same offset on every lane of the node."""

    space: Space
    param: int
    node: int
    lane: Lane
    offset: int


@dataclass(frozen=True, slots=True)
class Move:
    """One descriptor: `rows` rows of `width` bytes of the source; pitches in bytes, 0 where there is one row.

    src_type and dst_type: what the values are; they differ in casts and sums, whose destination rows are wider or narrower accordingly.
    """

    src: Place
    dst: Place
    width: int
    rows: int
    src_pitch: int
    dst_pitch: int
    src_type: Dtype
    dst_type: Dtype


@dataclass(frozen=True, slots=True)
class Extent:
    """A contiguous range of a rank's memory."""

    place: Place
    bytes: int


@dataclass(frozen=True, slots=True)
class Level:
    """A value of one counter. The cell lies on `owner` (n, j) and is raised by `raiser` alone; `key` are the keys that choose it."""

    flag: str
    key: tuple[int, ...]
    owner: tuple[int, int]
    raiser: tuple[int, int]
    value: int


@dataclass(frozen=True, slots=True)
class Step:
    """One op of one rank in one call.

    moves: descriptors of a copy, a put or a cast; the terms of a sum or landing in the order in which they are added.
    extents: what a zero, sum or landing writes as a whole; what a read or free names, one a tensor.
    levels: what a wait awaits; what a signal or put raises, in the order of `op.raises`.
    seed: of sums and landings: the destination starts from what the caller accumulates into, or from zero. Without it a sum starts from
    zero, and a landing from what the destination holds.
    context: of a put: the RMA context that carries it.
    """

    op: Op
    moves: tuple[Move, ...] = ()
    extents: tuple[Extent, ...] = ()
    levels: tuple[Level, ...] = ()
    seed: bool = False
    context: int = 0

    @property
    def kind(self) -> OpKind:
        return self.op.kind

    @property
    def stream(self) -> str:
        return self.op.stream
