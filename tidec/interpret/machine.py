"""The reference meaning of a program: all ranks of a small topology run it, interleaved as badly as the language allows.

A rank's streams run in order, each at its own pace. A copy, sum or landing takes time: its destination is torn while it runs, and a source that
changes meanwhile gives a torn value. A put ends twice, late, DONE and THEN in any order; raises travel late, in order only within one counter (for
puts: from one rank to one peer). Whoever may move next is drawn by a seeded policy. Memory starts as poison; only what rests at zero starts at zero,
once. Target `python` of DESIGN section 6.
"""
from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import product

from tidec.index import evaluate
from tidec.interpret.provenance import FREED, TORN, UNWRITTEN, ZERO, Value, contract_key, difference, expected, handed_in, named
from tidec.interpret.provenance import seed as seed_of
from tidec.interpret.unfold import Place, Point, Rank, UnfoldError, Unfolding, show_counter, show_place, unfold
from tidec.schedule.branch import branch
from tidec.schedule.program import Block, Event, Kind, OpKind, Program, Scope, statements


class Policy(Enum):
    """How the next move is drawn."""

    RANDOM = "random"            # any move
    OLDEST = "oldest"            # mostly the move that waits longest: ranks in step
    NEWEST = "newest"            # mostly the move that came last: one rank runs far ahead
    SLOW_RANK = "slow rank"      # one rank moves only if no other can
    SLOW_STREAM = "slow stream"  # one stream, on every rank, moves only if nothing else can
    SLOW_WIRE = "slow wire"      # arrivals and completions of puts only if nothing else can
    ONE_QUEUE = "one queue"      # all streams of a rank share one queue, filled in position order
    ONE_RAIL = "one rail"        # one communicator carries puts, and signals and waits of a rail, in position order, whatever their streams


# One program has all of that on one stream, so that a seed alone does not draw ONE_RAIL: it is for collectives together.
DRAWN = tuple(p for p in Policy if p is not Policy.ONE_RAIL)


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """How a run ended. problem: empty if every call kept the contract. digest: of all outputs with the order of their sums. steps: moves made."""

    is_ok: bool
    problem: str
    digest: str
    steps: int
    policy: Policy


# What an op moves is in so many of its reads; further ones name memory that those lie in (a step's gradients in a landing).
_NUM_SOURCES = {OpKind.COPY: 1, OpKind.SUM: 2}


class _Stop(Exception):
    """The run has met its problem."""


def simulate(program: Program, nodes: int, calls: int = 3, seed: int = 0, policy: Policy | None = None, drop: int = -1) -> SimulationReport:
    """Runs `calls` calls on `nodes` nodes and checks the contract of each on every rank.

    seed: decides all draws, and the policy where none is given. drop: the id of an op that is left out, -1 for none.
    """
    draw = random.Random(seed)
    policy = policy or DRAWN[seed % len(DRAWN)]
    program = branch(program, nodes)
    # What call e gathered is read in call e + 1.
    reads_late = any(s.op.kind is OpKind.READ for s in statements(program))
    try:
        unfolding = unfold(program, nodes, calls + reads_late, drop)
    except UnfoldError as reason:
        return SimulationReport(False, str(reason), "", 0, policy)
    if unfolding.outside:
        first = unfolding.outside[0]
        return SimulationReport(False, f"{show_place(first.place)} does not exist: {first.point}", "", 0, policy)
    return play(unfolding, calls, draw, policy)


def play(unfolding: Unfolding, calls: int, draw: random.Random, policy: Policy) -> SimulationReport:
    """Runs the points of all ranks, of which the first `calls` calls must keep the contract."""
    machine = _Machine(unfolding, calls, draw, policy)
    try:
        machine.run()
        problem = ""
    except _Stop as stop:
        problem = str(stop)
    return SimulationReport(not problem, problem, "" if problem else machine.digest(), machine.steps, policy)


class _Cell:
    """A block of memory: its value, how often a write has begun or ended, and how many writes are running."""

    __slots__ = ("value", "version", "writers")

    def __init__(self, value: Value):
        self.value, self.version, self.writers = value, 0, 0


class _Task:
    """A point on its way: what it waits for, what waits for it, and the versions of the cells that it met at its start."""

    __slots__ = ("point", "missing", "followers", "read", "written", "values", "is_captured")

    def __init__(self, point: Point, missing: int):
        self.point, self.missing = point, missing
        self.values: list[Value] = []
        self.is_captured = False
        self.followers: list[_Task] = []
        self.read: list[list[tuple[_Cell, int, int]]] = []
        self.written: list[list[tuple[_Cell, int]]] = []


Move = tuple[Callable, tuple]


class _Machine:
    """The memory, the counters and the moves that can be made."""

    def __init__(self, unfolding: Unfolding, calls: int, draw: random.Random, policy: Policy):
        self.u, self.calls, self.draw, self.policy = unfolding, calls, draw, policy
        program = unfolding.program
        self.buffers = {b.name: b for b in program.buffers}
        self.cells: dict[Place, _Cell] = {}
        self.counters: dict[tuple, int] = {}
        self.asleep: dict[tuple, list[tuple[int, _Task]]] = {}
        self.wires: dict[tuple, deque] = {}
        self.moves: list[Move] = []
        self.slow: list[Move] = []
        self.steps = 0
        self.first_torn = ""
        self.extents = {b.name: tuple(range(evaluate(d.lo, {"M": unfolding.nodes}), evaluate(d.hi, {"M": unfolding.nodes})) for d in b.dims) for b in program.buffers}
        self.outputs: dict[tuple, Value] = {}
        self.slow_rank = draw.choice(unfolding.ranks)
        self.slow_stream = draw.choice(program.streams).name if program.streams else ""
        self.tasks = self._tasks()
        read_back = {c.buffer for t in self.tasks if t.point.op.kind is OpKind.READ for c in t.point.op.reads}
        # Of each output that no op reads: how many writes a (rank, call) still makes.
        self.unwritten: dict[tuple[Rank, int, str], int] = {}
        for t in self.tasks:
            for cell in t.point.op.writes:
                if self.buffers[cell.buffer].kind is Kind.OUTPUT and cell.buffer not in read_back:
                    key = (t.point.rank, t.point.call, cell.buffer)
                    self.unwritten[key] = self.unwritten.get(key, 0) + 1

    def _tasks(self) -> list[_Task]:
        tasks: list[_Task] = []
        for points in self.u.points:
            mine: list[_Task] = []
            last_on_rail = -1
            for i, point in enumerate(points):
                after = set(point.after)
                if self.policy is Policy.ONE_QUEUE:
                    # Ops of other streams that were issued since the last one that this op follows anyway.
                    after |= {k for k in range(max(after, default=-1) + 1, i) if points[k].op.stream != point.op.stream}
                if self.policy is Policy.ONE_RAIL and self._is_on_rail(point):
                    after |= {last_on_rail} - {-1}
                    last_on_rail = i
                task = _Task(point, len(after))
                for a in after:
                    mine[a].followers.append(task)
                mine.append(task)
            tasks += mine
        return tasks

    def _is_on_rail(self, point: Point) -> bool:
        flags = {p.flag for p in (*(r.promise for r in point.op.raises), *point.op.waits)}
        return any(f.name in flags and f.scope is Scope.RAIL for f in self.u.program.flags)

    # ---- moves

    def _offer(self, act: Callable, *args: object, rank: Rank, stream: str, on_wire: bool = False) -> None:
        is_slow = (
            self.policy is Policy.SLOW_RANK and rank == self.slow_rank or self.policy is Policy.SLOW_STREAM and stream == self.slow_stream
            or self.policy is Policy.SLOW_WIRE and on_wire
        )
        (self.slow if is_slow else self.moves).append((act, args))

    def _next(self) -> Move:
        moves = self.moves or self.slow
        if self.policy in (Policy.OLDEST, Policy.NEWEST) and self.draw.random() < 0.9:
            return moves.pop(0 if self.policy is Policy.OLDEST else -1)
        x = self.draw.randrange(len(moves))
        moves[x], moves[-1] = moves[-1], moves[x]
        return moves.pop()

    def run(self) -> None:
        """Makes moves until none is left. Raises _Stop with the problem."""
        for task in self.tasks:
            if not task.missing:
                self._ready(task)
        while self.moves or self.slow:
            self.steps += 1
            act, args = self._next()
            act(*args)
        self._check_end()

    def _ready(self, task: _Task) -> None:
        """All that stands before it in its stream has ended: it may start, a wait once its counter is there."""
        point = task.point
        for wanted in point.waits:
            if self.counters.get(wanted.counter, 0) < wanted.value:
                self.asleep.setdefault(wanted.counter, []).append((wanted.value, task))
                return
        self._offer(self._start, task, rank=point.rank, stream=point.op.stream)

    def _start(self, task: _Task) -> None:
        point, kind = task.point, task.point.op.kind
        if kind in (OpKind.WAIT, OpKind.JOIN):
            self._pass(task)
            return
        if kind is OpKind.SIGNAL:
            for kept in point.raises:
                self._offer(self._raise, kept.counter, rank=point.rank, stream=point.op.stream, on_wire=True)
            self._pass(task)
            return
        task.read = [[(c, c.version, c.writers) for c in map(self._cell, ref.places)] for ref in point.reads]
        for ref in point.writes:
            cells = [self._cell(p) for p in ref.places]
            for cell in cells:
                cell.version += 1
                cell.writers += 1
            task.written.append([(cell, cell.version) for cell in cells])
        if kind is not OpKind.PUT:
            self._offer(self._end, task, rank=point.rank, stream=point.op.stream)
            return
        way = (*point.writes[0].places[0][1:3], point.context)
        for event in (Event.DONE, Event.THEN):
            counters = tuple(r.counter for r in point.raises if r.event is event)
            wire = self.wires.setdefault((event, counters, way), deque())
            wire.append((task, event, counters))
            if len(wire) == 1:
                self._offer(self._complete, wire, rank=point.rank, stream=point.op.stream, on_wire=True)
        self._pass(task)

    def _pass(self, task: _Task) -> None:
        """What follows in the stream may go on."""
        for follower in task.followers:
            follower.missing -= 1
            if not follower.missing:
                self._ready(follower)

    def _raise(self, counter: tuple) -> None:
        reached = self.counters[counter] = self.counters.get(counter, 0) + 1
        sleepers = self.asleep.get(counter)
        if sleepers:
            self.asleep[counter] = [s for s in sleepers if s[0] > reached]
            for value, task in sleepers:
                if value <= reached:
                    self._offer(self._start, task, rank=task.point.rank, stream=task.point.op.stream)

    def _complete(self, wire: deque) -> None:
        """The oldest put of a wire is through with its source (DONE), or has arrived (THEN)."""
        task, event, counters = wire.popleft()
        point = task.point
        # Whichever comes first: by then the data has left the source.
        if not task.is_captured:
            task.values, task.is_captured = self._read(task), True
        if event is Event.THEN:
            self._write(task, task.values)
        for counter in counters:
            self._offer(self._raise, counter, rank=point.rank, stream=point.op.stream, on_wire=True)
        if wire:
            head = wire[0][0].point
            self._offer(self._complete, wire, rank=head.rank, stream=head.op.stream, on_wire=True)

    def _end(self, task: _Task) -> None:
        point, kind = task.point, task.point.op.kind
        match kind:
            case OpKind.COPY | OpKind.CAST:
                self._write(task, self._read(task))
            case OpKind.SUM:
                terms = [self._value(task, *at) for ref in task.read[:2] for at in ref]
                self._write(task, [self._unless_spoilt(task, (seed_of(point.call) if point.seed else ZERO) + sum(terms, ZERO))])
            case OpKind.LAND:
                lanes, num = self.u.program.lanes, len(task.written[0])
                terms = [self._value(task, *at) for at in task.read[0]]
                old = [seed_of(point.call) if point.seed else cell.value for cell, _ in task.written[0]]
                self._write(task, [old[b] + sum((terms[i * num + b] for i in range(lanes)), ZERO) for b in range(num)])
            case OpKind.ZERO:
                self._write(task, [ZERO] * len(task.written[0]))
            case OpKind.FREE:
                self._write(task, [FREED] * len(task.written[0]))
            case OpKind.READ:
                for ref, met in zip(point.reads, task.read):
                    for place, at in zip(ref.places, met):
                        self._check(place, ref.call, self._value(task, *at))
        for ref in point.writes:
            self._wrote(point, ref.places[0][0] if ref.places else "")
        self._pass(task)

    # ---- memory

    def _cell(self, place: Place) -> _Cell:
        cell = self.cells.get(place)
        if cell is None:
            name, node, lane, call, *key = place
            buffer = self.buffers[name]
            if buffer.kind is Kind.INPUT:
                value = handed_in(buffer.block, node, lane, tuple(key), call)
            else:
                value = ZERO if buffer.rests_at_zero else UNWRITTEN
            cell = self.cells[place] = _Cell(value)
        return cell

    def _value(self, task: _Task, cell: _Cell, version: int, writers: int) -> Value:
        """What a running op read from a cell: torn if a write ran meanwhile."""
        own = sum(1 for written in task.written for c, _ in written if c is cell)
        if cell.version != version + own or writers:
            self._torn(task.point)
            return TORN
        return cell.value

    def _read(self, task: _Task) -> list[Value]:
        """What a move brings to each cell that it writes: the one that it reads to all of them, or one each."""
        values = [self._unless_spoilt(task, self._value(task, *at)) for at in task.read[0]]
        return values * len(task.written[0]) if len(values) == 1 else values

    def _unless_spoilt(self, task: _Task, value: Value) -> Value:
        """The value that an op read; torn where memory that it lies in, which the op's further reads name, does not hold what was handed in for that call."""
        point = task.point
        further = _NUM_SOURCES.get(point.op.kind, len(point.reads))
        for ref, met in zip(point.reads[further:], task.read[further:]):
            for place, at in zip(ref.places, met):
                name, node, lane, _, *key = place
                block = self.buffers[name].block
                if self._value(task, *at) != handed_in(block, node, lane, contract_key(block, tuple(key)), ref.call):
                    self._torn(point)
                    return TORN
        return value

    def _write(self, task: _Task, values: list[Value]) -> None:
        (written,) = task.written
        for (cell, version), value in zip(written, values, strict=True):
            is_torn = cell.version != version or cell.writers > 1
            if is_torn:
                self._torn(task.point)
            cell.value = TORN if is_torn else value
            cell.version += 1
            cell.writers -= 1

    def _torn(self, point: Point) -> None:
        self.first_torn = self.first_torn or f"; the first torn block was met by {point}"

    # ---- the contract

    def _wrote(self, point: Point, name: str) -> None:
        key = (point.rank, point.call, name)
        if key in self.unwritten:
            self.unwritten[key] -= 1
            if not self.unwritten[key]:
                for place in self._places(name, point.rank):
                    self._check(place, point.call, self._cell(place).value)

    def _places(self, name: str, rank: Rank) -> Iterator[Place]:
        for key in product(*self.extents[name]):
            yield (name, *rank, -1, *key)

    def _check(self, place: Place, call: int, value: Value) -> None:
        if not 0 <= call < self.calls:
            return
        name, node, lane, _, *key = place
        buffer, block = self.buffers[name], self.buffers[name].block
        if block is Block.SHARD:
            wanted = named(buffer.holds, buffer.dims, node, lane, tuple(key), call, nodes=self.u.nodes)
        else:
            wanted = expected(block, node, lane, tuple(key), call, nodes=self.u.nodes, lanes=self.u.program.lanes)
        if wrong := difference(value, wanted):
            raise _Stop(f"call {call}: {show_place(place)} {wrong}{self.first_torn}")
        self.outputs[call, name, node, lane, contract_key(block, tuple(key))] = value

    def _check_end(self) -> None:
        blocked = [(task, value) for sleepers in self.asleep.values() for value, task in sleepers]
        if blocked:
            lines = [
                f"{task.point} waits for {show_counter(w.counter)} to reach {w.value}, it is {self.counters.get(w.counter, 0)}"
                for task, _ in blocked[:4] for w in task.point.waits
            ]
            raise _Stop(f"deadlock, {len(blocked)} streams wait: " + "; ".join(lines))
        outputs = [b for b in self.buffers.values() if b.kind is Kind.OUTPUT]
        if not outputs:
            raise _Stop("the program has no output")
        for e, rank, buffer in product(range(self.calls), self.u.ranks, outputs):
            for key in {contract_key(buffer.block, key) for key in product(*self.extents[buffer.name])}:
                if (e, buffer.name, *rank, key) not in self.outputs:
                    raise _Stop(f"call {e}: block {list(key)} of {buffer.name} on rank {rank[0]}.{rank[1]} is never handed over")

    def digest(self) -> str:
        """sha256 of every output of every call, with the order in which it was summed."""
        return hashlib.sha256(repr(sorted(self.outputs.items())).encode()).hexdigest()
