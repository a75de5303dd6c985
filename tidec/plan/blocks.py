"""What a block of a plan is made of: the descriptors and ranges that an access of it stands for.

M nodes, L lanes, N = M*L ranks, P params, S bytes a shard, E_sub elements a sub-slice; of parameter p: n_p elements, s_p bytes a rank,
o_p where it starts. Byte offsets:

    shard              parameter p at o_p; with a cast, in the stored types, at `stored_starts`
    landing (b, m, i)  parameter p of rank r = m*L + i at b*N*S + o_p*N + r*s_p
    slice, partial     L rows of C values, dense
    gradient (p, t, b) of each run of the sub-slice, rows r = t*L .. t*L + L-1 at element r*n_p + first, pitch n_p: the full ones in one
                       descriptor, the partial one in a second
    output (p, b)      element (p*L + b)*E_sub of the packed row, clipped to E

A block is whole, and then C = E_sub, or its last two indices are a stripe and a chunk of it: chunk q has elements q*C .. (q+1)*C of every row, and the
chunks of a block lie one after the other.

Source: paper sections 2.1 and 4.2.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidec.errors import Diagnostic, Spot, TidecError
from tidec.inputs.signature import Dtype
from tidec.plan.arena import extents_of, stored_bytes, stored_starts
from tidec.plan.layout import PACK_ITEM_BYTES, Segment, SubSlices
from tidec.plan.steps import Extent, Lane, Move, Place, Space
from tidec.schedule.program import ALL, Block, Buffer, Coord, Kind

if TYPE_CHECKING:
    from tidec.plan.ir import Plan

GRADIENTS = (Block.GRAD_SLICE, Block.GRAD_ROW)
_OUTPUTS = (Block.OUT_SLICE, Block.OUT_ROW)
_SUMMED = (Block.PARTIAL, *_OUTPUTS)


@dataclass(frozen=True, slots=True)
class Home:
    """Where a buffer lies: a block begins at base + the sum of (index - low) * stride over its dimensions, and never past `end`.

    block_bytes: bytes of a packed block, 0 where it is not contiguous.
    """

    name: str
    block: Block
    space: Space
    base: int
    end: int
    block_bytes: int
    lows: tuple[int, ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class At:
    """One access with its numbers: a block of a buffer on a rank. offset: where it begins; a whole dimension counts from its first index."""

    home: Home
    key: tuple[Coord, ...]
    node: int
    lane: Lane
    offset: int

    def place(self, more_bytes: int = 0) -> Place:
        """The byte that far into the block."""
        return Place(self.home.space, -1, self.node, self.lane, self.offset + more_bytes)


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one gradient: in the tensor from byte `start`, `pitch` bytes apart, `width` bytes each; in the packed block from element `at`."""

    param: int
    start: int
    pitch: int
    width: int
    rows: int
    at: int


class Blocks:
    """The blocks of one plan. It remembers the pieces of every gradient block that it was asked for."""

    def __init__(self, plan: Plan):
        self._plan, self._layout, self._slices = plan, plan.layout, plan.slices
        self._row, self._item = plan.slices.chunk_elems, plan.grad_item_bytes
        self._type = plan.gradient_dtype if plan.grad_item_bytes else plan.gathered[0]
        self._pieces: dict[tuple[int, ...], tuple[Piece, ...]] = {}
        self._runs: dict[tuple[int, ...], tuple[Segment, ...]] = {}
        self._whole: dict[tuple[int, ...], tuple[int, int]] = {}
        self._homes = {b.name: self._home(b) for b in plan.program.buffers}
        self._shard = tuple((p.start_bytes, p.shard_bytes) for p in plan.layout.params if p.shard_bytes)

    def home(self, buffer: str) -> Home:
        return self._homes[buffer]

    def at(self, home: Home, key: tuple[Coord, ...], node: int, lane: Lane, spot: Spot) -> At:
        """The access of that block. Raises V102 where an index is outside the buffer, the node or the machine."""
        offset = home.base
        for k, low, extent, stride in zip(key, home.lows, home.extents, home.strides):
            if type(k) is int:
                if not 0 <= k - low < extent:
                    raise outside(f"index {k} of {home.name} is outside {low}..{low + extent - 1}", spot)
                offset += (k - low) * stride
        if not 0 <= node < self._plan.nodes or type(lane) is int and not 0 <= lane < self._plan.lanes:
            raise outside(f"{home.name} is accessed on rank {node}.{lane}, which does not exist", spot)
        return At(home, key, node, lane, min(offset, home.end))

    def moves(self, src: At, dst: At) -> tuple[Move, ...]:
        """The descriptors of a copy or put of one block to another of the same contents."""
        if src.home.block in GRADIENTS:
            return tuple(self._gradient(src, dst))
        if dst.home.block is Block.PLACED:
            return tuple(self._placed(src, dst))
        assert src.home.block is dst.home.block and src.home.block_bytes == dst.home.block_bytes, (src.home, dst.home)
        dtype = self._packed_type(src.home.block)
        return (Move(src.place(), dst.place(), _whole_bytes(src), 1, 0, 0, dtype, dtype),)

    def terms(self, staged: At, own: At, into: At, lane: int) -> tuple[Move, ...]:
        """The terms of a sum in the order in which they are added: the staged block of every other lane in order, then the own gradient."""
        dim = next(d for d, k in enumerate(staged.key) if not isinstance(k, int))
        low, step, item = staged.home.lows[dim], staged.home.strides[dim], self._item
        src_pitch, dst_pitch, moves = self._row * item, self._row * PACK_ITEM_BYTES, []
        pieces = self.pieces(own.home.block, own.key)
        for i in range(self._plan.lanes):
            if i != lane:
                block = (i - low) * step
                for p in pieces:
                    src, dst = staged.place(block + p.at * item), into.place(p.at * PACK_ITEM_BYTES)
                    moves.append(_rows(p, src, src_pitch, self._type, dst, dst_pitch, Dtype.FP32))
        return (*moves, *self._gradient(own, into))

    def landings(self, src: At, into: At, lane: int) -> tuple[Move, ...]:
        """The descriptors of a landing: of each chunk of each sub-slice, row `lane` of the blocks at one offset of every lane."""
        part, step = into.key[0], src.home.strides[-3 if self._slices.num_chunks > 1 else -1]
        row, moves = self._row * PACK_ITEM_BYTES, []
        for b in range(self._plan.lanes):
            for chunk in range(self._slices.num_chunks):
                x0, x1 = self._slices.chunk_bounds(part, b, chunk)
                if x0 < x1:
                    dst = Place(Space.OUT, -1, into.node, into.lane, x0 * PACK_ITEM_BYTES)
                    at = src.place(b * step + (chunk * self._plan.lanes + lane) * row)
                    moves.append(Move(at, dst, (x1 - x0) * PACK_ITEM_BYTES, 1, 0, 0, Dtype.FP32, Dtype.FP32))
        return tuple(moves)

    def casts(self, src: At, dst: At) -> tuple[Move, ...]:
        """The descriptors of a cast of the shard, one a run of parameters that are stored in one type."""
        runs: list[list] = []
        starts = stored_starts(self._layout, self._plan.stored)
        for p, start, stored, gathered in zip(self._layout.params, starts, self._plan.stored, self._plan.gathered):
            if p.shard_elems and runs and runs[-1][2:] == [stored, gathered]:
                runs[-1][1] += p.shard_elems
            elif p.shard_elems:
                runs.append([(start, p.start_bytes), p.shard_elems, stored, gathered])
        return tuple(Move(src.place(a), dst.place(b), elems * stored.item_bytes, 1, 0, 0, stored, gathered) for (a, b), elems, stored, gathered in runs)

    def extents(self, at: At) -> tuple[Extent, ...]:
        """The ranges that an access names as a whole: its block, or all blocks of its last dimensions; every gradient, one each."""
        home = at.home
        if home.block in GRADIENTS:
            assert all(k is ALL for k in at.key), at
            return tuple(
                Extent(Place(Space.GRAD, i, at.node, at.lane, 0), p.real_elems * self._item)
                for i, p in enumerate(self._layout.params) if p.is_trainable and p.real_elems
            )
        if home.block in _OUTPUTS:
            part, *cut = at.key
            is_chunk = home.block is Block.OUT_ROW and bool(cut)
            end = self._slices.row_chunk_bounds(part, self._chunk(*cut))[1] if is_chunk else self._slices.row_bounds(part)[1]
            return (Extent(at.place(), max(0, end * PACK_ITEM_BYTES - at.offset)),)
        return (Extent(at.place(), _whole_bytes(at)),)

    def pieces(self, block: Block, key: tuple[int, ...]) -> tuple[Piece, ...]:
        """The rows of gradients in block (p, t, b) of sub-slices, or (p, i) of whole rows; none where all of it is padding."""
        found = self._pieces.get(key)
        if found is None:
            found = self._pieces[key] = tuple(self._cut(self._runs_of(block, key), key[1], self._plan.lanes if block is Block.GRAD_SLICE else 1))
        return found

    def num_pieces(self, block: Block, key: tuple[int, ...]) -> int:
        """How many pieces `pieces` gives, without making them where every row is whole."""
        cut = (key[0], *key[2:])
        if cut not in self._whole:
            lanes = self._plan.lanes if block is Block.GRAD_SLICE else 1
            runs, low, high = self._runs_of(block, key), 0, self._plan.ranks // lanes
            # Rows that are whole fall as the rank grows: the nodes on which all of them are come first.
            while low < high:
                node = (low + high) // 2
                low, high = (node + 1, high) if all(self._layout.gradient_rows(run, node, lanes)[0] == lanes for run in runs) else (low, node)
            self._whole[cut] = low, len(runs)
        num_nodes, num_runs = self._whole[cut]
        return num_runs if key[1] < num_nodes else len(self.pieces(block, key))

    @property
    def num_placed(self) -> int:
        """Descriptors that place one shard in one landing: one a parameter that has bytes."""
        return len(self._shard)

    def _runs_of(self, block: Block, key: tuple[int, ...]) -> tuple[Segment, ...]:
        cut = (key[0], *key[2:])
        if cut not in self._runs:
            part, *rest = cut
            if block is Block.GRAD_SLICE:
                self._runs[cut] = self._slices.segments(part, rest[0], self._chunk(*rest[1:]))
            else:
                self._runs[cut] = self._slices.row_segments(part, self._chunk(*rest))
        return self._runs[cut]

    def _chunk(self, stripe: int = 0, piece: int = 0) -> int:
        """The chunk that the last two indices of a block name; a block that is whole has none."""
        return stripe * self._slices.stripe_chunks + piece

    def _cut(self, runs: tuple[Segment, ...], node: int, lanes: int) -> Iterator[Piece]:
        """The runs for the ranks node*lanes .. node*lanes + lanes-1; one rank's row is the case of one lane."""
        item = self._item
        for run in runs:
            n = self._layout.params[run.param].shard_elems
            full, tail = self._layout.gradient_rows(run, node, lanes)
            start = node * lanes * n + run.first
            if full:
                yield Piece(run.param, start * item, n * item, run.count * item, full, run.at)
            if tail:
                yield Piece(run.param, (start + full * n) * item, n * item, tail * item, 1, full * self._row + run.at)

    def _gradient(self, src: At, dst: At) -> Iterator[Move]:
        is_summed = dst.home.block in _SUMMED
        item, target = (PACK_ITEM_BYTES, Dtype.FP32) if is_summed else (self._item, self._type)
        for p in self.pieces(src.home.block, src.key):
            grad = Place(Space.GRAD, p.param, src.node, src.lane, p.start)
            yield _rows(p, grad, p.pitch, self._type, dst.place(p.at * item), self._row * item, target)

    def _placed(self, src: At, dst: At) -> Iterator[Move]:
        rank = dst.key[1] * self._plan.lanes + dst.key[2]
        dtype = self._packed_type(Block.SHARD)
        for start, size in self._shard:
            yield Move(src.place(start), dst.place(start * self._plan.ranks + rank * size), size, 1, 0, 0, dtype, dtype)

    def _packed_type(self, block: Block) -> Dtype:
        return Dtype.FP32 if block is Block.PARTIAL else self._type

    def _home(self, b: Buffer) -> Home:
        plan, (lows, extents) = self._plan, extents_of(b, self._plan.nodes)
        if b.kind is Kind.INPUT and b.block is Block.SHARD:
            size = stored_bytes(plan.layout, plan.stored) if plan.has_cast else plan.layout.shard_bytes
            return Home(b.name, b.block, Space.SHARD, 0, size, size, lows, extents, (size,))
        if b.block in GRADIENTS:
            return Home(b.name, b.block, Space.GRAD, 0, 0, 0, lows, extents, (0,) * len(extents))
        if b.block in _OUTPUTS:
            return Home(b.name, b.block, Space.OUT, 0, self._layout.packed_elems * PACK_ITEM_BYTES, 0, lows, extents, output_strides(b, plan.slices))
        region = next(r for r in plan.arena.regions if r.buffer == b.name)
        strides = (*region.strides, *(0,) * (len(extents) - len(region.strides)))
        return Home(b.name, b.block, Space.ARENA, region.offset, region.offset + region.bytes, strides[-1], lows, region.extents, strides)


def output_strides(buffer: Buffer, slices: SubSlices) -> tuple[int, ...]:
    """Bytes from one index to the next of the output: part, sub-slice, stripe, chunk; one of whole rows has no sub-slice."""
    lanes, is_row = slices.lanes, buffer.block is Block.OUT_ROW
    chunk = slices.chunk_elems * (lanes if is_row else 1)
    whole = (slices.capacity_elems * lanes, *(() if is_row else (slices.capacity_elems,)))
    return tuple(x * PACK_ITEM_BYTES for x in (*whole, slices.stripe_chunks * chunk, chunk))[: len(buffer.dims)]


def _whole_bytes(at: At) -> int:
    """How much of a packed buffer an access names: its block, or all blocks of its last dimensions."""
    whole = next((d for d, k in enumerate(at.key) if not isinstance(k, int)), len(at.key))
    assert all(k is ALL for k in at.key[whole:]), at
    return at.home.strides[whole - 1] if whole else at.home.end - at.home.base


def outside(sentence: str, spot: Spot) -> TidecError:
    """The refusal of an access that lies outside what is declared."""
    return TidecError(Diagnostic("V102", sentence, spots=(spot,), help="declare the extent that the schedule uses, or change the access"))


def _rows(p: Piece, src: Place, src_pitch: int, source: Dtype, dst: Place, dst_pitch: int, target: Dtype) -> Move:
    """The descriptor of a piece; pitches in bytes."""
    return Move(src, dst, p.width, 1, 0, 0, source, target) if p.rows == 1 else Move(src, dst, p.width, p.rows, src_pitch, dst_pitch, source, target)
