"""The exact arena of a plan: where every buffer of it lies, the same on every rank.

M nodes, L lanes, N = M*L ranks, S bytes a shard, E_sub elements a sub-slice.

Regions, in this order: the landings of an all-gather, one or two, as one region `landing` (bank b at b*N*S), its `resident_shard` where
nothing is cast, then every buffer of packed blocks that is no input, in the order in which the schedule declares them. Each begins at a multiple of 512 bytes.
A region's blocks lie row-major in the buffer's declared dimensions. With one lane a buffer of what the other lanes send is empty.
"""
from __future__ import annotations

from dataclasses import dataclass

from tidec.errors import Diagnostic, TidecError
from tidec.index import evaluate
from tidec.inputs.document import MAX_INT64
from tidec.inputs.signature import Dtype
from tidec.plan.layout import PACK_ITEM_BYTES, GroupLayout
from tidec.schedule.program import OTHERS, Block, Buffer, Kind, Program, statements

ALIGNMENT_BYTES = 512
LANDING, RESIDENT_SHARD = "landing", "resident_shard"
PACKED = (Block.SHARD, Block.SLICE, Block.PARTIAL, Block.ROW)


@dataclass(frozen=True, slots=True)
class Region:
    """A named range of the arena.

    buffer: the schedule's name of the buffer that lies there.  is_staging: whether it is temporary: neither landing nor resident shard.
    lows, extents: the first index and the number of indices of each dimension.  strides: bytes from one index to the next; a dimension
    past the strides is inside the block, whose parts the layout places (the nodes and lanes of a landing).
    """

    name: str
    buffer: str
    offset: int
    bytes: int
    is_staging: bool
    lows: tuple[int, ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arena:
    """All regions, by offset. bytes: the end of the last one, rounded up to the alignment."""

    regions: tuple[Region, ...]
    bytes: int

    @property
    def staging_bytes(self) -> int:
        """Bytes of all regions that are neither landing nor resident shard, padding between regions not counted."""
        return sum(r.bytes for r in self.regions if r.is_staging)


def stored_starts(layout: GroupLayout, stored: tuple[Dtype, ...]) -> tuple[int, ...]:
    """Byte offset of every parameter in the resident shard as it is stored: one after the other, each rounded up to its item size."""
    starts, at = [], 0
    for p, dtype in zip(layout.params, stored):
        starts.append(-(-at // dtype.item_bytes) * dtype.item_bytes)
        at = starts[-1] + p.shard_elems * dtype.item_bytes
    return tuple(starts)


def stored_bytes(layout: GroupLayout, stored: tuple[Dtype, ...]) -> int:
    """Bytes of the resident shard as it is stored."""
    return stored_starts(layout, stored)[-1] + layout.params[-1].shard_elems * stored[-1].item_bytes


def block_bytes(block: Block, layout: GroupLayout, *, lanes: int, num_parts: int, grad_item_bytes: int, num_chunks: int = 1) -> int:
    """Bytes of one packed block, of a chunk where blocks are cut. grad_item_bytes: of a gradient's value, 0 in an all-gather. Source: paper section 4.2."""
    assert block in PACKED, block
    if block is Block.SHARD:
        return layout.shard_bytes
    return lanes * layout.sub_slices(num_parts, lanes, num_chunks).chunk_elems * (PACK_ITEM_BYTES if block is Block.PARTIAL else grad_item_bytes)


def extents_of(buffer: Buffer, nodes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(lows, extents) of a buffer's dimensions on that many nodes."""
    env = {"M": nodes}
    lows = tuple(int(evaluate(d.lo, env)) for d in buffer.dims)
    return lows, tuple(max(0, int(evaluate(d.hi, env)) - low) for d, low in zip(buffer.dims, lows))


def row_major(extents: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    """Bytes from one index to the next in each dimension of a dense array."""
    strides, step = [], item_bytes
    for extent in reversed(extents):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def lay_arena(
    program: Program, layout: GroupLayout, *, nodes: int, num_parts: int, grad_item_bytes: int, has_cast: bool, num_chunks: int = 1,
) -> Arena:
    """The arena of a program's branch for that many nodes.

    has_cast: whether the all-gather casts into its stage, so that the resident shard stays outside the arena.
    Guaranteed: `check_arena` holds. Raises P005 where an offset would not fit 64 bits.
    """
    regions: list[Region] = []

    def place(name: str, buffer: Buffer, is_staging: bool, extents: tuple[int, ...], strides: tuple[int, ...]) -> None:
        start = _round_up(regions[-1].offset + regions[-1].bytes) if regions else 0
        lows, declared = extents_of(buffer, nodes)
        regions.append(Region(name, buffer.name, start, strides[0] * extents[0], is_staging, lows, (*extents, *declared[len(extents) :]), strides))

    for b in program.buffers:
        if b.block is Block.PLACED:
            place(LANDING, b, False, extents_of(b, nodes)[1][:1], (layout.landing_bytes,))
    for b in program.buffers:
        if b.kind is Kind.INPUT and b.block is Block.SHARD and not has_cast:
            place(RESIDENT_SHARD, b, False, (1,), (layout.shard_bytes,))
    for b in program.buffers:
        if b.block in PACKED and b.kind is not Kind.INPUT:
            one = block_bytes(b.block, layout, lanes=program.lanes, num_parts=num_parts, grad_item_bytes=grad_item_bytes, num_chunks=num_chunks)
            extents = tuple(0 if empty else x for empty, x in zip(_from_nobody(program, b), extents_of(b, nodes)[1]))
            place(b.name, b, b.kind is Kind.TEMP, extents, row_major(extents, one))
    arena = Arena(tuple(regions), _round_up(regions[-1].offset + regions[-1].bytes) if regions else 0)
    if arena.bytes > MAX_INT64:
        raise TidecError(Diagnostic("P005", f"the arena would be {arena.bytes:,} bytes, more than an offset of 64 bits reaches",
                                    reason=f"its largest region is {max(regions, key=lambda r: r.bytes).name}", help="shard smaller groups, or set fewer blocks"))
    check_arena(arena)
    return arena


def _from_nobody(program: Program, buffer: Buffer) -> tuple[bool, ...]:
    """For each dimension, whether it counts other lanes and there are none: every read of the buffer names OTHERS in it, and L is 1."""
    reads = [c.key for s in statements(program) for c in s.op.reads if c.buffer == buffer.name]
    return tuple(program.lanes == 1 and bool(reads) and all(key[d] is OTHERS for key in reads) for d in range(len(buffer.dims)))


def check_arena(arena: Arena) -> None:
    """Check that regions are aligned, disjoint, inside the arena, and that no name is there twice. Raises V402."""
    names = [r.name for r in arena.regions]
    for name in names:
        if names.count(name) > 1:
            raise _wrong(f'two regions are called "{name}"', "names must differ")
    end, before = 0, "the start"
    for r in sorted(arena.regions, key=lambda r: (r.offset, r.bytes)):
        if r.offset % ALIGNMENT_BYTES:
            raise _wrong(f'region "{r.name}" is not aligned', f"it begins at byte {r.offset}, which {ALIGNMENT_BYTES} does not divide")
        if r.offset < end:
            raise _wrong(f'region "{r.name}" overlaps "{before}"', f"it begins at byte {r.offset}, the other ends at {end}")
        if r.bytes < 0:
            raise _wrong(f'region "{r.name}" has a negative size', f"{r.bytes} bytes")
        end, before = r.offset + r.bytes, r.name
    if end > arena.bytes:
        raise _wrong(f'region "{before}" passes the end of the arena', f"it ends at byte {end} of {arena.bytes}")


def _round_up(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _wrong(sentence: str, reason: str) -> TidecError:
    return TidecError(Diagnostic("V402", sentence, reason=reason, help="report this plan: its arena must never be run"))
