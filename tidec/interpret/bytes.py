"""A lowered plan carried out on real memory: all ranks' steps in a drawn legal order, on bytes that start as NaN.

M nodes, L lanes, N = M*L ranks, r rank, e call, p parameter. Every value of a call differs from every other one in it, whatever its rank, parameter,
row or column; all are exact in each type, and so are their sums in fp32. Arena, stages, outputs and the padding of shards start as 0x7FC0, and inputs
become that once they are freed: a NaN in bf16, fp16 and fp32. Only what rests at zero starts at zero.
"""
from __future__ import annotations

import random
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

from tidec.inputs.ask import Collective
from tidec.inputs.signature import Dtype
from tidec.plan.ir import Plan
from tidec.plan.layout import PACK_ITEM_BYTES
from tidec.plan.steps import Extent, Level, Move, Place, Space, Step
from tidec.schedule.program import Event, Every, OpKind

POISON = b"\xc0\x7f"
# Sign, eight bits of mantissa and nine exponents: integers below 2**16, exact in bf16 and fp16; sums of 256 of them are exact in fp32.
MANTISSAS, EXPONENTS = 128, 9
NUM_VALUES = 2 * MANTISSAS * EXPONENTS


@dataclass(frozen=True, slots=True)
class PlayReport:
    """How a run ended. problem: empty if every landing or output of every call is exact. steps: how many were carried out."""

    is_ok: bool
    problem: str
    steps: int


class _Stop(Exception):
    """The run has met its problem."""


def play(plan: Plan, *, calls: int = 3, seed: int = 0, accumulate: bool = False, steps: Callable[[int, int], Iterable[Step]] | None = None) -> PlayReport:
    """Carries out `calls` calls of a plan and compares what they leave: landings with the parameters, outputs with the exact sums.

    seed: draws the order in which streams run and puts arrive. accumulate: outputs start from numbers, else from NaN.
    steps: what a rank issues in a call, the plan's own by default (for mutants in tests).
    Raises ValueError where a call has more values than can be told apart.
    """
    player = _Player(plan, calls, accumulate)
    try:
        player.play(random.Random(seed), steps or plan.steps)
        player.check_end()
    except _Stop as stop:
        return PlayReport(False, str(stop), player.steps)
    return PlayReport(True, "", player.steps)


def value(call: int, index: int) -> float:
    """The number of one place of a call; places of a call with another index below NUM_VALUES have another one."""
    sign, rest = divmod((index + 769 * call) % NUM_VALUES, MANTISSAS * EXPONENTS)
    return float((1 - 2 * sign) * (MANTISSAS + rest % MANTISSAS) << rest // MANTISSAS)


def decode(raw: bytes | bytearray, dtype: Dtype) -> tuple[float, ...]:
    """The numbers in little-endian memory of that type."""
    count = len(raw) // dtype.item_bytes
    if dtype is Dtype.BF16:
        wide = bytearray(4 * count)
        wide[2::4], wide[3::4] = raw[::2], raw[1::2]
        return struct.unpack(f"<{count}f", wide)
    return struct.unpack(f"<{count}{_CODES[dtype]}", raw)


def encode(numbers: Iterable[float], dtype: Dtype) -> bytes:
    """The memory of numbers that the type holds exactly, or that fp32 rounds to nearest even."""
    numbers = tuple(numbers)
    if dtype is Dtype.BF16:
        wide = struct.pack(f"<{len(numbers)}f", *numbers)
        return bytes(b for pair in zip(wide[2::4], wide[3::4]) for b in pair)
    return struct.pack(f"<{len(numbers)}{_CODES[dtype]}", *numbers)


_CODES = {Dtype.FP16: "e", Dtype.FP32: "f", Dtype.FP64: "d"}


class _Player:
    """The memory and counters of all ranks."""

    def __init__(self, plan: Plan, calls: int, accumulate: bool):
        self.plan, self.calls, self.accumulate, self.steps = plan, calls, accumulate, 0
        self.layout, self.is_gather = plan.layout, plan.collective is Collective.ALL_GATHER
        # Where the values of a parameter begin, among those of one rank.
        self.starts = [sum(p.real_elems for p in self.layout.params[:i]) for i in range(len(self.layout.params) + 1)]
        if (num := self.starts[-1] * (1 if self.is_gather else plan.ranks)) > NUM_VALUES:
            raise ValueError(f"{num} values cannot be told apart: at most {NUM_VALUES}")
        self.counters: dict[tuple, int] = defaultdict(int)
        self.flying: dict[tuple[int, int, int], deque] = defaultdict(deque)
        self.arena = [bytearray(POISON * (plan.arena.bytes // 2)) for _ in range(plan.ranks)]
        for region in plan.arena.regions:
            if plan.program.buffer(region.buffer).rests_at_zero:
                for memory in self.arena:
                    memory[region.offset : region.offset + region.bytes] = bytes(region.bytes)
        each = list(product(range(calls), range(plan.ranks)))
        self.inputs = {(e, r): self._shard(e, r) if self.is_gather else self._gradients(e, r) for e, r in each}
        blank = POISON * (PACK_ITEM_BYTES // 2) * self.layout.packed_elems
        self.out = {at: bytearray(encode(self._before(*at), Dtype.FP32) if accumulate else blank) for at in each}

    # ---- what is handed in, and what must come out

    def _of_shard(self, e: int, r: int, p: int) -> list[float]:
        """Rank r's rows of a parameter, without padding."""
        param = self.layout.params[p]
        first = min(r * param.shard_elems, param.real_elems)
        return [value(e, self.starts[p] + i) for i in range(first, min(first + param.shard_elems, param.real_elems))]

    def _shard(self, e: int, r: int) -> dict[tuple[Space, int], bytearray]:
        shard = bytearray()
        for p, (param, dtype) in enumerate(zip(self.layout.params, self.plan.stored)):
            shard += bytes(-len(shard) % dtype.item_bytes)
            real = encode(self._of_shard(e, r, p), dtype)
            shard += real + POISON * ((param.shard_elems * dtype.item_bytes - len(real)) // 2)
        return {(Space.SHARD, -1): shard}

    def _gradient(self, e: int, r: int, p: int, element: int) -> float:
        return value(e, r * self.starts[-1] + self.starts[p] + element)

    def _gradients(self, e: int, r: int) -> dict[tuple[Space, int], bytearray]:
        dtype = self.plan.gradient_dtype
        return {
            (Space.GRAD, p): bytearray(encode((self._gradient(e, r, p, i) for i in range(param.real_elems)), dtype))
            for p, param in enumerate(self.layout.params) if param.is_trainable
        }

    def _before(self, e: int, r: int) -> list[float]:
        """What the caller accumulates into."""
        return [float(70000 + 1000 * e + 97 * r + i) for i in range(self.layout.packed_elems)]

    def check_landing(self, e: int, rank: int, start: int) -> None:
        """The landing at that byte of the arena holds every parameter of the call, first row first, and no NaN in it."""
        for p, (param, dtype) in enumerate(zip(self.layout.params, self.plan.gathered)):
            at = start + param.start_bytes * self.plan.ranks
            got = decode(self.arena[rank][at : at + param.real_elems * dtype.item_bytes], dtype)
            want = [value(e, self.starts[p] + i) for i in range(param.real_elems)]
            self._compare(f"call {e}: the landing of rank {rank}", p, got, want)

    def check_output(self, e: int, rank: int) -> None:
        """The output of a rank is the sum over all ranks, added to what the caller had, if it accumulates; padding is not looked at."""
        got, before = decode(self.out[e, rank], Dtype.FP32), self._before(e, rank) if self.accumulate else [0.0] * self.layout.packed_elems
        for p, param in enumerate(self.layout.params):
            first = min(rank * param.shard_elems, param.real_elems)
            num = min(param.packed_elems, param.real_elems - first)
            want = [before[param.packed_start + i] + sum(self._gradient(e, r, p, first + i) for r in range(self.plan.ranks)) for i in range(num)]
            self._compare(f"call {e}: the output of rank {rank}", p, got[param.packed_start : param.packed_start + num], want)

    def check_end(self) -> None:
        if self.is_gather:
            landing = self.plan.arena.regions[0]
            for rank in range(self.plan.ranks):
                self.check_landing(self.calls - 1, rank, landing.offset + (self.calls - 1) % 2 * self.layout.landing_bytes)
        else:
            for at in self.out:
                self.check_output(*at)

    def _compare(self, where: str, p: int, got: Iterable[float], want: list[float]) -> None:
        for i, (x, y) in enumerate(zip(got, want, strict=True)):
            if x != y:
                row, column = divmod(i, self.layout.params[p].row_elems)
                raise _Stop(f"{where} holds {x:g}, not {y:g}, in row {row}, column {column} of parameter {p}")

    # ---- memory

    def _memory(self, call: int, place: Place, rank: int) -> bytearray:
        if place.space is Space.ARENA:
            return self.arena[rank]
        return self.out[call, rank] if place.space is Space.OUT else self.inputs[call, rank][place.space, place.param]

    def _ranks(self, place: Place) -> list[int]:
        lanes = range(self.plan.lanes) if isinstance(place.lane, Every) else (place.lane,)
        return [place.node * self.plan.lanes + j for j in lanes]

    def _range(self, call: int, place: Place, rank: int, more: int, size: int) -> tuple[bytearray, slice]:
        memory, start = self._memory(call, place, rank), place.offset + more
        if not 0 <= start <= start + size <= len(memory):
            raise _Stop(f"call {call}: bytes {start} to {start + size} of {place.space.value} on rank {rank} are outside its {len(memory)}")
        return memory, slice(start, start + size)

    def _rows(self, call: int, move: Move) -> list[list[bytes]]:
        """The bytes of each row of the source, from each of its ranks."""
        found = []
        for row in range(move.rows):
            parts = [self._range(call, move.src, rank, row * move.src_pitch, move.width) for rank in self._ranks(move.src)]
            found.append([bytes(memory[at]) for memory, at in parts])
        return found

    def _store(self, call: int, move: Move, rows: list[list[bytes]]) -> None:
        """One row from one rank, as the destination's type."""
        if move.dst.space not in (Space.ARENA, Space.OUT):
            raise _Stop(f"call {call}: {move.dst.space.value} is written, which is the caller's")
        for rank, (row, (raw,)) in product(self._ranks(move.dst), enumerate(rows)):
            new = raw if move.src_type is move.dst_type else encode(decode(raw, move.src_type), move.dst_type)
            memory, at = self._range(call, move.dst, rank, row * move.dst_pitch, len(new))
            memory[at] = new

    def _add(self, call: int, move: Move) -> None:
        for rank, (row, parts) in product(self._ranks(move.dst), enumerate(self._rows(call, move))):
            memory, at = self._range(call, move.dst, rank, row * move.dst_pitch, move.width // move.src_type.item_bytes * move.dst_type.item_bytes)
            for raw in parts:
                memory[at] = encode((x + y for x, y in zip(decode(memory[at], move.dst_type), decode(raw, move.src_type), strict=True)), move.dst_type)

    def _fill(self, call: int, extent: Extent, rank: int, pattern: bytes) -> None:
        memory, at = self._range(call, extent.place, rank, 0, extent.bytes)
        memory[at] = (pattern * (extent.bytes // len(pattern) + 1))[: extent.bytes]

    # ---- steps

    def _raised(self, level: Level) -> None:
        cell = (level.flag, level.key, level.owner, level.raiser)
        self.counters[cell] += 1
        if self.counters[cell] != level.value:
            raise _Stop(f"{level} is raised as number {self.counters[cell]}")

    def _is_ready(self, step: Step) -> bool:
        return step.kind is not OpKind.WAIT or all(self.counters[x.flag, x.key, x.owner, x.raiser] >= x.value for x in step.levels)

    def _carry_out(self, call: int, rank: int, step: Step) -> None:
        self.steps += 1
        match step.kind:
            case OpKind.COPY | OpKind.CAST:
                for move in step.moves:
                    self._store(call, move, self._rows(call, move))
            case OpKind.PUT:
                self.flying[rank, step.moves[0].dst.node, step.context].append((call, step))
            case OpKind.SIGNAL:
                self._raised(step.levels[0])
            case OpKind.SUM | OpKind.LAND | OpKind.ZERO:
                # A sum starts anew, unless it begins the output of a caller that accumulates; a landing only where it begins one of another caller.
                adds = step.kind is OpKind.LAND if not step.seed else self.accumulate
                if not adds:
                    self._fill(call, step.extents[0], rank, b"\0")
                for move in step.moves:
                    self._add(call, move)
            case OpKind.FREE:
                for extent in step.extents:
                    self._fill(call, extent, rank, POISON)
            case OpKind.READ if call > 0:
                self.check_landing(call - 1, rank, step.extents[0].place.offset)

    def _arrive(self, way: tuple[int, int, int]) -> None:
        call, step = self.flying[way].popleft()
        for move in step.moves:
            self._store(call, move, self._rows(call, move))
        for level, kept in zip(step.levels, step.op.raises, strict=True):
            assert kept.event in (Event.THEN, Event.DONE)
            self._raised(level)

    def play(self, draw: random.Random, steps: Callable[[int, int], Iterable[Step]]) -> None:
        """Every rank's streams in a drawn order; a put arrives at any time after it was issued, in order on its way."""
        queues: dict[tuple[int, str], deque] = defaultdict(deque)
        for call, rank in product(range(self.calls), range(self.plan.ranks)):
            for step in steps(rank, call):
                queues[rank, step.stream].append((call, step))
        while any(queues.values()) or any(self.flying.values()):
            ways = [("step", k) for k, q in queues.items() if q and self._is_ready(q[0][1])] + [("put", k) for k, q in self.flying.items() if q]
            if not ways:
                raise _Stop(f"every rank waits: {[(k, q[0][1].op.label) for k, q in queues.items() if q]}")
            what, key = draw.choice(ways)
            if what == "put":
                self._arrive(key)
                continue
            # A few steps at once, so that streams drift apart.
            for _ in range(draw.choice((1, 1, 4, 40))):
                if not queues[key] or not self._is_ready(queues[key][0][1]):
                    break
                call, step = queues[key].popleft()
                self._carry_out(call, key[0], step)
