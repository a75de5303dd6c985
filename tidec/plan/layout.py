"""Block to bytes: where each parameter's rows lie.

M nodes, L lanes, N = M*L ranks, P params, r = n*L + j a rank. Parameter p is D rows of K values, R = ceil(D/N) rows a rank,
n_p = R*K elements, s_p bytes in the type it is gathered in.

The landing is parameter-major: o_p = s_0 + ... + s_(p-1), rank r's rows of p start at o_p*N + r*s_p, and S = the sum of all
s_p is what one rank contributes. The padding of a parameter is the tail of its part, so its first D*K elements are the
parameter itself.

The reduce-scatter's output is one packed fp32 row a rank: the trainable parameters one after the other, n_p elements each,
E together. It is cut into n_part * L sub-slices of E_sub elements.

Source: paper sections 2.1, 4.1 and 4.2.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.contract import rows_per_rank
from tidec.inputs.document import MAX_INT64, quoted
from tidec.inputs.knobs import CHUNK_ALIGNMENT_ELEMS
from tidec.inputs.signature import Group

PACK_ITEM_BYTES = 4
ALIGNMENT_BYTES = 16


@dataclass(frozen=True, slots=True)
class ParamRows:
    """Where one parameter lies.

    rows D, row_elems K, item_bytes of the gathered type; shard_rows R; start_bytes o_p;
    packed_start: its first element in the packed output row; is_trainable: whether it has elements there.
    """

    name: str
    rows: int
    row_elems: int
    item_bytes: int
    shard_rows: int
    start_bytes: int
    packed_start: int
    is_trainable: bool

    @property
    def shard_elems(self) -> int:
        """n_p: elements of a rank's shard, padding counted."""
        return self.shard_rows * self.row_elems

    @property
    def real_elems(self) -> int:
        """D*K: elements of the parameter, and of each rank's unsharded gradient."""
        return self.rows * self.row_elems

    @property
    def shard_bytes(self) -> int:
        """s_p: bytes of a rank's shard."""
        return self.shard_elems * self.item_bytes

    @property
    def packed_elems(self) -> int:
        """Elements of the packed output row: n_p, 0 for a frozen parameter."""
        return self.shard_elems if self.is_trainable else 0

    @property
    def is_aligned16(self) -> bool:
        """Whether o_p, where its shard starts in the group's, is a multiple of 16 bytes."""
        return self.start_bytes % ALIGNMENT_BYTES == 0


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """Where everything of a group lies on N ranks; built by `lay_out`.

    shard_bytes S: what one rank contributes to the all-gather.  packed_elems E: elements of a rank's packed output.
    """

    params: tuple[ParamRows, ...]
    ranks: int
    shard_bytes: int = field(init=False)
    packed_elems: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shard_bytes", sum(p.shard_bytes for p in self.params))
        object.__setattr__(self, "packed_elems", sum(p.packed_elems for p in self.params))

    @property
    def landing_bytes(self) -> int:
        """N*S."""
        return self.ranks * self.shard_bytes

    @property
    def pack_bytes(self) -> int:
        """What stock FSDP2 packs in fp32 before it can reduce: 4*N*E (paper eq. 3)."""
        return PACK_ITEM_BYTES * self.ranks * self.packed_elems

    @property
    def pad_bytes(self) -> int:
        """Bytes of the landing that belong to no row."""
        return self.landing_bytes - sum(p.real_elems * p.item_bytes for p in self.params)

    @property
    def zero_row_ranks(self) -> int:
        """Number of pairs (parameter, rank) in which the rank owns no row."""
        return sum(self.ranks - (-(-p.rows // p.shard_rows) if p.shard_rows else 0) for p in self.params)

    @property
    def unaligned16(self) -> int:
        """Number of parameters whose o_p is not a multiple of 16."""
        return sum(not p.is_aligned16 for p in self.params)

    def landing_offset(self, p: int, r: int) -> int:
        """Byte offset of rank r's rows of parameter p in the landing.

        p: 0 <= p < P.  r: node-major rank, 0 <= r < N.
        Returns bytes, a multiple of the item size where all items have one size: o_p*N + r*s_p.
        Raises P102 when p or r is out of range.
        Source: paper eq. 2.
        """
        _check_index("parameter", p, len(self.params))
        _check_index("rank", r, self.ranks)
        return self.params[p].start_bytes * self.ranks + r * self.params[p].shard_bytes

    def sub_slices(self, num_parts: int, lanes: int, num_chunks: int = 1, stripes: int = 1) -> SubSlices:
        """How the packed output is cut for num_parts passes over lanes lanes, and every sub-slice into num_chunks chunks, as many a stripe."""
        return SubSlices(self, num_parts, lanes, num_chunks, stripes)

    def gradient_rows(self, segment: Segment, node: int, lanes: int) -> tuple[int, int]:
        """How much of a segment the gradient holds for the L ranks of a destination node.

        Rank r's part of gradient p starts at element r*n_p of its D*K; of the segment's elements
        clamp(D*K - r*n_p - first, 0, count) are in it and the rest is padding. That falls with r, and a segment is no longer
        than n_p, so over r = node*L .. node*L + L-1 the full rows come first and one row at most is partial.

        node: t, 0 <= t < N/L.
        Returns (full_rows, tail_elems): rows that are whole, and elements of the row after them, 0 where there is no partial one.
        Raises P102 when the node is out of range.  Source: paper section 4.1; facts/proofs.md section 5.
        """
        assert lanes >= 1 and self.ranks % lanes == 0, (self.ranks, lanes)
        _check_index("node", node, self.ranks // lanes)
        p = self.params[segment.param]
        past = p.real_elems - segment.first - node * lanes * p.shard_elems
        full_rows = min(lanes, (past - segment.count) // p.shard_elems + 1) if past >= segment.count else 0
        tail_elems = max(0, past - full_rows * p.shard_elems) if full_rows < lanes else 0
        return full_rows, tail_elems


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of one parameter in a block's row.

    param: index in the group's params (frozen ones counted).  first: its first element within the n_p of a rank.
    count: elements, at least 1.  at: where it begins in the row of the block, in elements.
    """

    param: int
    first: int
    count: int
    at: int


@dataclass(frozen=True, slots=True)
class SubSlices:
    """The packed output row cut into num_parts * lanes sub-slices of one capacity; the last live one may be shorter.

    Sub-slice s of pass `part` is number part*L + s. All results count elements of the row, 0..E.
    capacity_elems E_sub: ceil(E / (num_parts*L)) rounded up to 8 elements, so that every row of a block is 16-byte aligned.
    num_chunks: of a sub-slice, a multiple of the stripes.  chunk_elems: ceil(E_sub / num_chunks) rounded up to 8; the last chunks may be shorter, or empty.
    """

    layout: GroupLayout
    num_parts: int
    lanes: int
    num_chunks: int = 1
    stripes: int = 1
    capacity_elems: int = field(init=False)
    chunk_elems: int = field(init=False)

    def __post_init__(self) -> None:
        assert self.num_parts >= 1 and self.lanes >= 1 and self.num_chunks >= 1, (self.num_parts, self.lanes, self.num_chunks)
        assert self.stripes >= 1 and self.num_chunks % self.stripes == 0, (self.num_chunks, self.stripes)
        share = -(-self.layout.packed_elems // (self.num_parts * self.lanes))
        object.__setattr__(self, "capacity_elems", _whole_rows(share))
        object.__setattr__(self, "chunk_elems", _whole_rows(-(-self.capacity_elems // self.num_chunks)))

    @property
    def stripe_chunks(self) -> int:
        """Chunks of a stripe."""
        return self.num_chunks // self.stripes

    def bounds(self, part: int, s: int) -> tuple[int, int]:
        """[x0, x1) of a sub-slice, clipped to E. Raises P102."""
        self._check(part, s)
        i = part * self.lanes + s
        return self._clip(i), self._clip(i + 1)

    def row_bounds(self, part: int) -> tuple[int, int]:
        """[x0, x1) of all L sub-slices of a pass together, clipped to E. Raises P102."""
        self._check(part, 0)
        return self._clip(part * self.lanes), self._clip((part + 1) * self.lanes)

    def chunk_bounds(self, part: int, s: int, chunk: int) -> tuple[int, int]:
        """[x0, x1) of a chunk of a sub-slice; x1 <= x0 where it is empty. Raises P102."""
        return self._chunk(*self.bounds(part, s), chunk, self.chunk_elems)

    def row_chunk_bounds(self, part: int, chunk: int) -> tuple[int, int]:
        """[x0, x1) of a chunk of all of a pass, L times as long; x1 <= x0 where it is empty. Raises P102."""
        return self._chunk(*self.row_bounds(part), chunk, self.lanes * self.chunk_elems)

    def segments(self, part: int, s: int, chunk: int = 0) -> tuple[Segment, ...]:
        """The runs of parameters in a chunk of a sub-slice, in order, `at` counted from its start; empty where it lies past E. Raises P102."""
        return self._within(*self.chunk_bounds(part, s, chunk))

    def row_segments(self, part: int, chunk: int = 0) -> tuple[Segment, ...]:
        """The runs of parameters in a chunk of all of a pass; `at` counts from its start. Raises P102."""
        return self._within(*self.row_chunk_bounds(part, chunk))

    def _chunk(self, x0: int, x1: int, chunk: int, size: int) -> tuple[int, int]:
        _check_index("chunk", chunk, self.num_chunks)
        return x0 + chunk * size, min(x0 + (chunk + 1) * size, x1)

    def _clip(self, i: int) -> int:
        return min(i * self.capacity_elems, self.layout.packed_elems)

    def _check(self, part: int, s: int) -> None:
        _check_index("part", part, self.num_parts)
        _check_index("sub-slice", s, self.lanes)

    def _within(self, x0: int, x1: int) -> tuple[Segment, ...]:
        segments = []
        for i, p in enumerate(self.layout.params):
            low, high = max(x0, p.packed_start), min(x1, p.packed_start + p.packed_elems)
            if low < high:
                segments.append(Segment(i, low - p.packed_start, high - low, low - x0))
        return tuple(segments)


def _whole_rows(elems: int) -> int:
    return -(-elems // CHUNK_ALIGNMENT_ELEMS) * CHUNK_ALIGNMENT_ELEMS


def lay_out(group: Group, ranks: int) -> GroupLayout:
    """The layout of a group on N ranks.

    ranks: N >= 1.  Every parameter must be sharded on dimension 0 for the layout to be one that FSDP2 has.
    Raises P005, naming the first parameter, where an offset does not fit signed 64 bits.
    Source: paper section 2.1.
    """
    assert ranks >= 1, ranks
    params: list[ParamRows] = []
    start = packed = 0
    for p in group.params:
        placed = ParamRows(p.name, p.rows, p.row_elems, group.gathered_as(p).item_bytes, rows_per_rank(p.rows, ranks), start, packed, p.requires_grad)
        params.append(placed)
        start += placed.shard_bytes
        packed += placed.packed_elems
        if ranks * max(start, PACK_ITEM_BYTES * packed) > MAX_INT64:
            size = f"gather {start} bytes each" if ranks * start > MAX_INT64 else f"pack {PACK_ITEM_BYTES * packed} bytes each in fp32"
            raise TidecError(Diagnostic("P005", f"parameter {quoted(p.name)} makes group {quoted(group.name)} larger than 64-bit offsets reach",
                                        reason=f"{ranks} ranks {size}", help="give the shapes that the parameters have, or fewer ranks"))
    return GroupLayout(tuple(params), ranks)


def check_layout(layout: GroupLayout, slices: SubSlices | None = None) -> None:
    """Check that rows tile the landing and sub-slices tile the packed row, from shapes alone.

    slices: the cut to check too; `None` = only the landing.
    Intervals are sorted by start; each must begin where the one before ends, in the group's order. O(P + num_parts*L).
    Raises V402 naming the two parameters.  Source: facts/proofs.md section 5.
    """
    ranks = layout.ranks
    sizes = [-(-p.rows // ranks) * p.row_elems for p in layout.params]
    landing = []
    for i, (p, size) in enumerate(zip(layout.params, sizes)):
        first, row_bytes = layout.landing_offset(i, 0), size * p.item_bytes
        last = layout.landing_offset(i, ranks - 1)
        if last - first != (ranks - 1) * row_bytes:
            raise _untiled("landing", p.name, p.name, f"rank {ranks - 1}'s rows start {last - first} bytes after rank 0's, not {(ranks - 1) * row_bytes}")
        landing.append((first, first + ranks * row_bytes, i))
    _check_chain("landing", "byte", landing, layout, ranks * layout.shard_bytes)
    packed = [(p.packed_start, p.packed_start + size, i) for i, (p, size) in enumerate(zip(layout.params, sizes)) if p.is_trainable]
    _check_chain("packed output", "element", packed, layout, layout.packed_elems)
    if slices is not None:
        _check_slices(slices)


def _check_slices(slices: SubSlices) -> None:
    """Every element of the packed row lies in one segment of one sub-slice, which its block has room for."""
    layout, at, before = slices.layout, 0, -1
    for part in range(slices.num_parts):
        for s in range(slices.lanes):
            x0, x1 = slices.bounds(part, s)
            where = f"sub-slice {s} of part {part}"
            if x0 != at or x1 - x0 > slices.capacity_elems:
                raise _untiled("packed output", _named(layout, before), where, f"it holds elements {x0} to {x1}, want {at} and at most {slices.capacity_elems} of them")
            for chunk in range(slices.num_chunks):
                c0, c1 = x0 + chunk * slices.chunk_elems, min(x0 + (chunk + 1) * slices.chunk_elems, x1)
                for segment in slices.segments(part, s, chunk):
                    start = layout.params[segment.param].packed_start + segment.first
                    if start != at or segment.at != at - c0 or at + segment.count > c1:
                        raise _untiled("packed output", _named(layout, before), _named(layout, segment.param), f"{where} has a run at element {start}, want {at}")
                    at, before = at + segment.count, segment.param
            if at != x1:
                raise _untiled("packed output", _named(layout, before), where, f"its runs end at element {at}, not {x1}")
    if at != layout.packed_elems:
        raise _untiled("packed output", _named(layout, before), "the end", f"the sub-slices end at element {at} of {layout.packed_elems}")


def _check_chain(buffer: str, unit: str, intervals: list[tuple[int, int, int]], layout: GroupLayout, size: int) -> None:
    end, before = 0, -1
    for first, last, i in sorted(intervals):
        if first != end:
            fault = f"they overlap by {_counted(end - first, unit)}" if first < end else f"they leave a gap of {_counted(first - end, unit)}"
            raise _untiled(buffer, _named(layout, before), _named(layout, i), fault)
        if i < before:
            raise _untiled(buffer, _named(layout, before), _named(layout, i), "they lie in another order than in the group")
        end, before = last, i
    if end != size:
        raise _untiled(buffer, _named(layout, before), "the end", f"the rows end at {unit} {end} of {size}")


def _check_index(what: str, value: int, bound: int) -> None:
    if not 0 <= value < bound:
        raise TidecError(Diagnostic("P102", f"{what} {value} is outside 0..{bound - 1}", help="count from 0"))


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def _named(layout: GroupLayout, i: int) -> str:
    return layout.params[i].name if i >= 0 else "the start"


def _untiled(buffer: str, one: str, other: str, reason: str) -> TidecError:
    fault = f"the rows of {quoted(one)} do" if one == other else f"{quoted(one)} and {quoted(other)} do"
    return TidecError(Diagnostic("V402", f"{fault} not tile the {buffer}", reason=reason,
                                 help="report this plan: its layout must never be run"))
