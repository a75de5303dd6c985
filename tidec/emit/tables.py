"""The numbers of a plan as constexpr tables: O(P) entries, 64-bit, nothing that grows with the number of ranks.

P params, S shard bytes, E elements of a packed output row. runtime/include/tidec/layout.hpp says what an entry means.
"""
from __future__ import annotations

from dataclasses import dataclass

from tidec.emit.walk import Constants
from tidec.index import evaluate
from tidec.inputs.ask import Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.signature import Dtype
from tidec.plan.arena import block_bytes, stored_bytes, stored_starts
from tidec.plan.blocks import output_strides
from tidec.plan.ir import Plan
from tidec.plan.layout import PACK_ITEM_BYTES, Segment
from tidec.schedule.program import Block, Buffer, Kind

_PACKED = (Block.SHARD, Block.SLICE, Block.PARTIAL, Block.ROW)
_GRADIENTS = (Block.GRAD_SLICE, Block.GRAD_ROW)
_OUTPUTS = (Block.OUT_SLICE, Block.OUT_ROW)


@dataclass(frozen=True, slots=True)
class Array:
    """A constexpr array: its type and name, and its rows as text."""

    type: str
    name: str
    rows: tuple[str, ...]

    @property
    def span(self) -> str:
        """The array as a Rows of layout.hpp; an empty one is no array in C++."""
        return f"{{{self.name}, {len(self.rows)}}}" if self.rows else "{nullptr, 0}"


@dataclass(frozen=True, slots=True)
class Named:
    """A constant: its name and its initialiser."""

    type: str
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Tables:
    """arrays: those that have rows.  layout: the fields of kLayout in order, with what each is.  buffers: one a buffer of the program."""

    arrays: tuple[Array, ...]
    layout: tuple[tuple[str, str], ...]
    buffers: tuple[Named, ...]
    arena_bytes: int


def tables(plan: Plan, constants: Constants) -> Tables:
    """The tables of a plan. constants: what its buffers are called."""
    params = Array("Param", "kParams", tuple(
        _braced(p.real_elems, p.shard_elems, p.shard_bytes, p.start_bytes, p.is_trainable) for p in plan.layout.params
    ))
    casts = Array("CastRun", "kCasts", _casts(plan) if plan.has_cast else ())
    groups = _segments(plan) if plan.collective is Collective.REDUCE_SCATTER else ()
    segments = Array("Segment", "kSegments", tuple(_braced(s.param, s.first, s.count, s.at) for group in groups for s in group))
    starts = Array("int64_t", "kSegmentStarts", tuple(str(sum(map(len, groups[:i]))) for i in range(len(groups) + 1)) if groups else ())
    layout = (
        (str(plan.nodes), "nodes M"), (str(plan.lanes), "lanes L"), (str(plan.layout.shard_bytes), "shard_bytes S"),
        (str(plan.layout.packed_elems), "packed_elems E"), (str(plan.slices.capacity_elems), "slice_elems E_sub"),
        (str(plan.slices.num_chunks), "num_chunks K"), (str(plan.slices.stripe_chunks), "stripe_chunks"), (str(plan.slices.chunk_elems), "chunk_elems"),
        (_dtype(plan.gathered[0] if plan.collective is Collective.ALL_GATHER else plan.gradient_dtype), "moved"),
        ("Reduction::kInSwitch" if plan.lowering is Lowering.NVLS else "Reduction::kInOrder", "reduction"),
        (params.span, "params"), (casts.span, "casts"), (segments.span, "segments"), (starts.span, "segment_starts"),
    )
    buffers = tuple(_buffer(plan, b, constants.buffer(b.name)) for b in plan.program.buffers)
    return Tables(tuple(a for a in (params, casts, segments, starts) if a.rows), layout, buffers, plan.arena.bytes)


def _casts(plan: Plan) -> tuple[str, ...]:
    """Runs of parameters of one stored type that lie one after the other in both shards."""
    runs: list[list] = []
    for p, start, stored, gathered in zip(plan.layout.params, stored_starts(plan.layout, plan.stored), plan.stored, plan.gathered):
        if not p.shard_elems:
            continue
        if runs and runs[-1][3:] == [stored, gathered]:
            runs[-1][2] += p.shard_elems
        else:
            runs.append([start, p.start_bytes, p.shard_elems, stored, gathered])
    return tuple(_braced(src, dst, elems, _dtype(stored), _dtype(gathered)) for src, dst, elems, stored, gathered in runs)


def _segments(plan: Plan) -> tuple[tuple[Segment, ...], ...]:
    """Of every chunk of sub-slice part*L + s; with one node of every pass."""
    parts, chunks = range(plan.num_parts), range(plan.num_chunks)
    if any(b.block is Block.GRAD_ROW for b in plan.program.buffers):
        return tuple(plan.slices.row_segments(part, q) for part in parts for q in chunks)
    return tuple(plan.slices.segments(part, s, q) for part in parts for s in range(plan.lanes) for q in chunks)


def _buffer(plan: Plan, b: Buffer, name: str) -> Named:
    low = [int(evaluate(d.lo, {"M": plan.nodes})) for d in b.dims]
    if b.kind is Kind.INPUT and b.block is Block.SHARD:
        size = stored_bytes(plan.layout, plan.stored) if plan.has_cast else plan.layout.shard_bytes
        space, base, end, size, strides = "kShard", 0, size, size, (size,)
    elif b.block in _GRADIENTS:
        space, base, end, size, strides = "kGrad", 0, 0, 0, (0,) * len(low)
    elif b.block in _OUTPUTS:
        space, base, end, size, strides = "kOut", 0, plan.layout.packed_elems * PACK_ITEM_BYTES, 0, output_strides(b, plan.slices)
    else:
        region = next(r for r in plan.arena.regions if r.buffer == b.name)
        packed = b.block in _PACKED
        size = block_bytes(b.block, plan.layout, lanes=plan.lanes, num_parts=plan.num_parts, grad_item_bytes=plan.grad_item_bytes,
                           num_chunks=plan.num_chunks) if packed else 0
        space, base, end = "kArena", region.offset, region.offset + region.bytes
        strides = (*region.strides, *(0,) * (len(low) - len(region.strides)))
    return Named(
        f"Buffer<Block::k{_camel(b.block.value)}, {len(low)}>", name, _braced(f"Space::{space}", base, end, size, _braced(*low), _braced(*strides)),
    )


def _braced(*values: object) -> str:
    return "{" + ", ".join(str(v).lower() if isinstance(v, bool) else str(v) for v in values) + "}"


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _dtype(dtype: Dtype) -> str:
    return f"Dtype::k{dtype.value.capitalize()}"
