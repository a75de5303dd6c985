"""The reference meaning of values: a plan carried out on real numbers, bit for bit what every target must give. Target `python`.

M nodes, L lanes, N = M*L ranks, r rank, e call, p parameter. A sum is fp32, in this order: the seed (0, or what a caller that accumulates had), then
the partials of the nodes by wave and in a wave by destination lane; a node's partial is alpha times (0, then the staged lanes in order without the own
one, then the own). At M = 1 the partial is added to the seed at once. Where no gradient reaches, a partial is 0 whatever alpha is. A cast rounds to
nearest even, through fp32 where it gives bf16 or fp16, and turns every NaN into the quiet one. Which NaN a sum gives is not said.
"""
from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np

from tidec.inputs.ask import Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.signature import Dtype
from tidec.plan.ir import Plan
from tidec.plan.layout import PACK_ITEM_BYTES
from tidec.plan.steps import Extent, Level, Move, Place, Space, Step
from tidec.schedule.program import Every, OpKind

POISON = 0x7FC0
# Memory as bytes, and what each type is read as; bf16 has no type of numpy's.
_RAW = {Dtype.BF16: np.uint16, Dtype.FP16: np.float16, Dtype.FP32: np.float32, Dtype.FP64: np.float64}


@dataclass(frozen=True, slots=True)
class Given:
    """What the calls of a plan are given, as bytes.

    inputs[e][r]: of an all-gather (shard,), as it is stored; of a reduce-scatter one gradient a parameter, empty where it has none.
    before[e][r]: what outputs start from: fp32 numbers of a caller that accumulates, else anything.
    """

    inputs: tuple[tuple[tuple[np.ndarray, ...], ...], ...]
    before: tuple[tuple[np.ndarray, ...], ...]

    @property
    def calls(self) -> int:
        return len(self.inputs)


# What every rank has after every call, as bytes: [e][r], a landing or a packed fp32 row.
Outputs = tuple[tuple[np.ndarray, ...], ...]


def carry_out(
    plan: Plan, given: Given, *, alpha: float = 1.0, accumulate: bool = False, is_poisoned: bool = False, seed: int = 0,
    steps: Callable[[int, int], Iterable[Step]] | None = None,
) -> Outputs:
    """What every rank has after every call.

    seed: draws the order in which streams run and puts arrive; 0 is the plain one. is_poisoned: memory starts as NaN, and inputs become it once freed.
    steps: what a rank issues in a call, the plan's own by default.
    Raises ValueError where a step lies outside a memory, or where every rank waits: no plan that is proved does either.
    """
    player = _Player(plan, given, np.float32(alpha), accumulate, is_poisoned)
    with np.errstate(all="ignore"):
        player.play(random.Random(seed) if seed else None, steps or plan.steps)
    return player.outputs()


def widened(raw: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Values in memory of a type, as fp32."""
    if dtype is Dtype.BF16:
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32)


def narrowed(values: np.ndarray, dtype: Dtype) -> np.ndarray:
    """fp32 values rounded to nearest even, as memory of a type; every NaN becomes the quiet one."""
    is_nan = np.isnan(values)
    if dtype is Dtype.BF16:
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = ((bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16).astype(np.uint16)
        return np.where(is_nan, np.uint16(POISON), rounded)
    with np.errstate(over="ignore"):
        return np.where(is_nan, np.array(np.nan, _RAW[dtype]), values.astype(_RAW[dtype]))


def cast(raw: np.ndarray, source: Dtype, target: Dtype) -> np.ndarray:
    """Memory of one type as memory of another."""
    return raw if source is target else narrowed(widened(raw, source), target)


def zero_ranges(plan: Plan) -> tuple[tuple[int, int], ...]:
    """(offset, bytes) of what must hold 0 in an arena before the first call; the rest may hold anything."""
    return tuple((r.offset, r.bytes) for r in plan.arena.regions if plan.program.buffer(r.buffer).rests_at_zero)


def poisoned(num_bytes: int) -> np.ndarray:
    """Memory that is NaN in bf16, fp16 and fp32."""
    return np.full(num_bytes // 2 + 1, POISON, np.uint16).view(np.uint8)[:num_bytes]


class _Player:
    """The memory and counters of all ranks."""

    def __init__(self, plan: Plan, given: Given, alpha: np.float32, accumulate: bool, is_poisoned: bool):
        self.plan, self.alpha, self.accumulate, self.is_poisoned = plan, alpha, accumulate, is_poisoned
        self.is_gather, self.calls = plan.collective is Collective.ALL_GATHER, given.calls
        self.counters: dict[tuple, int] = defaultdict(int)
        self.flying: dict[tuple, deque[Step]] = defaultdict(deque)
        self.arena = [poisoned(plan.arena.bytes) if is_poisoned else np.zeros(plan.arena.bytes, np.uint8) for _ in range(plan.ranks)]
        for memory, (start, size) in product(self.arena, zero_ranges(plan)):
            memory[start : start + size] = 0
        self.inputs = {(e, r): [x.copy() if is_poisoned else x for x in given.inputs[e][r]] for e, r in product(range(self.calls), range(plan.ranks))}
        self.out = {(e, r): given.before[e][r].copy() for e, r in self.inputs}
        # Where the landing of the call before lies, as the next call reads it.
        self.landing: dict[int, Place] = {}

    def outputs(self) -> Outputs:
        return tuple(tuple(self.out[e, r] for r in range(self.plan.ranks)) for e in range(self.calls))

    # ---- memory

    def _memory(self, call: int, place: Place, rank: int) -> np.ndarray:
        if place.space is Space.ARENA:
            return self.arena[rank]
        if place.space is Space.OUT:
            return self.out[call, rank]
        return self.inputs[call, rank][max(place.param, 0)]

    def _ranks(self, place: Place) -> list[int]:
        lanes = range(self.plan.lanes) if isinstance(place.lane, Every) else (place.lane,)
        return [place.node * self.plan.lanes + lane for lane in lanes]

    def _rows(self, call: int, place: Place, rank: int, move: Move, pitch: int, dtype: Dtype) -> np.ndarray:
        """The rows of one end of a descriptor, as values of its type."""
        elems = move.width // move.src_type.item_bytes
        return np.ndarray((move.rows, elems), _RAW[dtype], self._memory(call, place, rank), place.offset, (pitch, dtype.item_bytes))

    def _sources(self, call: int, move: Move) -> list[np.ndarray]:
        return [self._rows(call, move.src, rank, move, move.src_pitch, move.src_type) for rank in self._ranks(move.src)]

    def _targets(self, call: int, move: Move) -> list[np.ndarray]:
        return [self._rows(call, move.dst, rank, move, move.dst_pitch, move.dst_type) for rank in self._ranks(move.dst)]

    def _range(self, call: int, extent: Extent, rank: int) -> np.ndarray:
        return np.ndarray((extent.bytes,), np.uint8, self._memory(call, extent.place, rank), extent.place.offset)

    # ---- steps

    def _copy(self, call: int, step: Step) -> None:
        for move in step.moves:
            (source,) = self._sources(call, move)
            for target in self._targets(call, move):
                target[...] = cast(source, move.src_type, move.dst_type)

    def _sum(self, call: int, step: Step, rank: int) -> None:
        adds = step.seed and self.accumulate
        (extent,) = step.extents
        into = self._range(call, extent, rank).view(np.float32)
        sums, reached = np.zeros(into.shape, np.float32), {}
        for move in step.moves:
            at = (move.dst.offset - extent.place.offset) // PACK_ITEM_BYTES, move.rows, move.width // move.src_type.item_bytes, move.dst_pitch
            if at not in reached:
                reached[at] = np.ndarray(at[1:3], np.float32, sums, at[0] * PACK_ITEM_BYTES, (move.dst_pitch, PACK_ITEM_BYTES))
            (source,) = self._sources(call, move)
            reached[at] += widened(source, move.src_type)
        for rows in reached.values():
            rows *= self.alpha
        if not adds:
            into[...] = sums
            return
        for (start, *shape, pitch), rows in reached.items():
            target = np.ndarray(tuple(shape), np.float32, into, start * PACK_ITEM_BYTES, (pitch, PACK_ITEM_BYTES))
            target += rows

    def _land(self, call: int, step: Step, rank: int) -> None:
        if step.seed and not self.accumulate:
            self._range(call, step.extents[0], rank)[...] = 0
        for move in step.moves:
            (target,), sources = self._targets(call, move), self._sources(call, move)
            if self.plan.lowering is Lowering.P2P:
                for source in sources:
                    target += source
            else:
                # As a switch gives it: the sum of the lanes, added once.
                total = np.zeros(target.shape, np.float32)
                for source in sources:
                    total += source
                target += total

    def _read(self, call: int, step: Step, rank: int) -> None:
        (extent,) = step.extents
        if call > 0:
            self.out[call - 1, rank] = self._range(call, extent, rank).copy()
        self.landing[rank] = extent.place

    def _raise(self, level: Level) -> None:
        cell = (level.flag, level.key, level.owner, level.raiser)
        self.counters[cell] += 1
        if self.counters[cell] != level.value:
            raise ValueError(f"{level} is raised as number {self.counters[cell]}")

    def _is_ready(self, step: Step) -> bool:
        return step.kind is not OpKind.WAIT or all(self.counters[x.flag, x.key, x.owner, x.raiser] >= x.value for x in step.levels)

    def _carry_out(self, call: int, rank: int, step: Step) -> None:
        match step.kind:
            case OpKind.COPY | OpKind.CAST:
                self._copy(call, step)
            case OpKind.PUT:
                self.flying[call, rank, step.moves[0].dst.node, step.context].append(step)
            case OpKind.SIGNAL:
                self._raise(step.levels[0])
            case OpKind.SUM:
                self._sum(call, step, rank)
            case OpKind.LAND:
                self._land(call, step, rank)
            case OpKind.ZERO:
                self._range(call, step.extents[0], rank)[...] = 0
            case OpKind.READ:
                self._read(call, step, rank)
            case OpKind.FREE if self.is_poisoned:
                for extent in step.extents:
                    self._range(call, extent, rank)[...] = poisoned(extent.bytes)

    def _arrive(self, way: tuple) -> None:
        step = self.flying[way].popleft()
        self._copy(way[0], step)
        for level in step.levels:
            self._raise(level)

    def play(self, draw: random.Random | None, steps: Callable[[int, int], Iterable[Step]]) -> None:
        """Every rank's streams in a drawn order; a put arrives at any time after it was issued, in order on its way and context."""
        queues: dict[tuple[int, str], deque] = defaultdict(deque)
        for call, rank in product(range(self.calls), range(self.plan.ranks)):
            for step in steps(rank, call):
                queues[rank, step.stream].append((call, step))
        while any(queues.values()) or any(self.flying.values()):
            moved = False
            ways = [*queues, *self.flying]
            if draw is not None:
                draw.shuffle(ways)
            for way in ways:
                for _ in range(draw.choice((1, 4, 40)) if draw else len(queues.get(way, ())) or 1):
                    if len(way) == 4:
                        if not self.flying[way]:
                            break
                        self._arrive(way)
                    elif queues[way] and self._is_ready(queues[way][0][1]):
                        call, step = queues[way].popleft()
                        self._carry_out(call, way[0], step)
                    else:
                        break
                    moved = True
            for way in [way for way, steps_left in self.flying.items() if not steps_left]:
                del self.flying[way]
            if not moved:
                raise ValueError(f"every rank waits: {[(way, q[0][1].op.label) for way, q in queues.items() if q]}")
        if self.is_gather:
            self._take_last(steps)

    def _take_last(self, steps: Callable[[int, int], Iterable[Step]]) -> None:
        """The landing of the last call: where the call after it would read it."""
        for rank in range(self.plan.ranks):
            for step in steps(rank, self.calls):
                if step.kind is OpKind.READ:
                    self._read(self.calls, step, rank)
