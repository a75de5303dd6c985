"""Every op that the ranks of a small topology issue: a program with M, the rank, the call and the loops as ints.

M nodes, n node, j lane, e call. The points of a rank stand in position order, the order of the text with the call outermost. A point names the
points of its stream that it follows: ops of one stream are ordered, but the iterations of an unordered set (`each`, `run`) are not ordered with
each other, nor with what follows them up to the join.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

from tidec.index import Node, compiled
from tidec.schedule.program import ALL, Buffer, Cell, Dim, Event, Every, Flag, Item, Kind, Loop, Op, OpKind, Program, Promise, Scope, Step, When

Rank = tuple[int, int]
# (buffer, node, lane, call, *key); the call is -1 where the buffer is the same memory in every call.
Place = tuple
# (flag, node and lane that it is raised for, node and lane that raise it, *keys that choose it).
Counter = tuple

MAX_POINTS = 3_000_000


class UnfoldError(ValueError):
    """A program that has no sensible points at this node count: too many, or a doubling loop that does not start at 1 or above."""


@dataclass(frozen=True, slots=True)
class Ref:
    """An access: its places, and the call whose contents are meant. Lanes advance slower than keys."""

    places: tuple[Place, ...]
    call: int


@dataclass(frozen=True, slots=True)
class Count:
    """A promise as the program counts it: `counter` has been raised `value` times once it is kept. in_box: flag, key and rank are as declared."""

    event: Event
    counter: Counter
    value: int
    call: int
    key: tuple[int, ...]
    in_box: bool


@dataclass(frozen=True, slots=True)
class Point:
    """One op of one rank in one call. `after`: the points of the rank's list that its stream runs before it."""

    op: Op
    rank: Rank
    names: tuple[str, ...]
    values: tuple[int, ...]
    position: tuple[int, ...]
    after: tuple[int, ...]
    reads: tuple[Ref, ...]
    writes: tuple[Ref, ...]
    raises: tuple[Count, ...]
    waits: tuple[Count, ...]
    seed: bool
    context: int

    @property
    def call(self) -> int:
        return self.values[0]

    def __str__(self) -> str:
        loops = " ".join(f"{name}={value}" for name, value in zip(self.names[1:], self.values[1:]))
        return f"call {self.call} {self.op.label} of rank {self.rank[0]}.{self.rank[1]}{' ' + loops if loops else ''} ({self.op.spot})"


@dataclass(frozen=True, slots=True)
class Outside:
    """An access of a block or a rank that does not exist."""

    point: Point
    place: Place


@dataclass(frozen=True, slots=True)
class Unfolding:
    """The points of every rank, in position order, and the accesses that lie outside their buffers."""

    program: Program
    nodes: int
    calls: int
    ranks: tuple[Rank, ...]
    points: tuple[tuple[Point, ...], ...]
    outside: tuple[Outside, ...]


def show_place(place: Place) -> str:
    """A place in words: buffer[key] on its rank."""
    name, node, lane, call, *key = place
    return f"{name}[{', '.join(map(str, key))}]{f' of call {call}' if call >= 0 else ''} on rank {node}.{lane}"


def show_counter(counter: Counter) -> str:
    """A counter in words."""
    flag, node, lane, by_node, by_lane, *keys = counter
    return f"{flag}{keys if keys else ''} for rank {node}.{lane} by rank {by_node}.{by_lane}"


def unfold(program: Program, nodes: int, calls: int, drop: int = -1) -> Unfolding:
    """All points of calls 0 .. calls-1 on `nodes` nodes. drop: the id of an op that is left out, -1 for none.

    Raises UnfoldError where a loop cannot be run.
    """
    facts = _Facts(program, nodes)
    body = _compile(program.body, ("M", "n", "j", "e"), facts, drop)
    ranks = tuple(product(range(nodes), range(program.lanes)))
    outside: list[Outside] = []
    points = []
    for rank in ranks:
        walk = _Walk(rank, outside)
        for e in range(calls):
            walk.run(body, (nodes, *rank, e), (e,))
        points.append(tuple(walk.points))
        if sum(map(len, points)) > MAX_POINTS:
            raise UnfoldError(f"more than {MAX_POINTS} ops")
    return Unfolding(program, nodes, calls, ranks, tuple(points), tuple(outside))


# ---- what does not depend on the rank


class _Facts:
    """The extents of buffers and boxes at one node count."""

    def __init__(self, program: Program, nodes: int):
        self.program, self.nodes, self.lanes = program, nodes, program.lanes
        self.buffers = {b.name: b for b in program.buffers}
        self.flags = {f.name: f for f in program.flags}
        self.extents = {b.name: tuple(range(_at(d.lo, nodes), _at(d.hi, nodes)) for d in b.dims) for b in program.buffers}
        self._boxes: dict[tuple, tuple[tuple[range, ...], bool]] = {}

    def box(self, flag: Flag, on: tuple[int, ...]) -> tuple[tuple[range, ...], bool]:
        """The ranges of the counted keys, and whether the choosing keys are declared."""
        found = self._boxes.get((flag.name, on))
        if found is None:
            names = tuple(d.name for d in flag.on)

            def extent(d: Dim) -> range:
                at = [x if not isinstance(x, Node) else compiled(x, ("M", *names))(self.nodes, *on) for x in (d.lo, d.hi)]
                return range(*at)

            declared = all(x in extent(d) and (d.step is not Step.DOUBLING or x & (x - 1) == 0 < x) for d, x in zip(flag.on, on))
            found = self._boxes[flag.name, on] = (tuple(map(extent, flag.box)), declared)
        return found


def _at(x: object, nodes: int) -> int:
    return compiled(x, ("M",))(nodes) if isinstance(x, Node) else x


# ---- programs as closures


def _compile(items: tuple[Item, ...], names: tuple[str, ...], facts: _Facts, drop: int) -> tuple[Callable, ...]:
    steps = []
    for item in items:
        if isinstance(item, Op):
            if item.id != drop:
                steps.append(_op(item, names, facts))
        elif isinstance(item, When):
            steps.append(partial(_run_when, compiled(item.cond, names), _compile(item.body, names, facts, drop)))
        else:
            steps.append(_loop(item, names, facts, drop))
    return tuple(steps)


def _run_when(cond: Callable, body: tuple[Callable, ...], walk: _Walk, args: tuple[int, ...], path: tuple[int, ...]) -> None:
    if cond(*args):
        walk.run(body, args, path)


def _loop(loop: Loop, names: tuple[str, ...], facts: _Facts, drop: int) -> Callable:
    lo, hi = compiled(loop.lo, names), compiled(loop.hi, names)
    body = _compile(loop.body, (*names, loop.name), facts, drop)
    is_set = loop.step in (Step.EACH, Step.RUN)
    stream = _stream(loop) if is_set else ""

    def run(walk: _Walk, args: tuple[int, ...], path: tuple[int, ...]) -> None:
        trips = _trips(loop, lo(*args), hi(*args))
        if is_set:
            walk.each(stream, body, args, path, trips)
            return
        for x in trips:
            walk.run(body, (*args, x), (*path, x))

    return run


def _trips(loop: Loop, lo: int, hi: int) -> Iterator[int]:
    if loop.step is not Step.DOUBLING:
        if hi - lo > MAX_POINTS:
            raise UnfoldError(f"the loop over {loop.name} runs {hi - lo} times")
        yield from range(lo, hi)
        return
    if lo < 1 and lo < hi:
        raise UnfoldError(f"the doubling loop over {loop.name} starts at {lo}")
    while lo < hi:
        yield lo
        lo *= 2


def _stream(item: Item) -> str:
    while not isinstance(item, Op):
        item = item.body[0]
    return item.stream


def _op(op: Op, names: tuple[str, ...], facts: _Facts) -> Callable:
    """All expressions of an op are read by one call, in the order in which the places and counts below take them."""
    shown = names[3:]
    cells = [*op.reads, *op.writes]
    promises = [*((r.event, r.promise, True) for r in op.raises), *((Event.END, p, False) for p in op.waits)]
    trees: list[object] = [op.seed, op.context]
    places = [_ref(c, facts, trees) for c in cells]
    counts = [_count(*p, facts, trees) for p in promises]
    num_reads, num_raises = len(op.reads), len(op.raises)
    values = compiled(tuple(trees), names)

    def run(walk: _Walk, args: tuple[int, ...], path: tuple[int, ...]) -> None:
        at = values(*args)
        outside: list[Place] = []
        refs = tuple([f(walk.rank, at, outside) for f in places])
        kept = tuple([f(walk.rank, at) for f in counts])
        point = Point(
            op, walk.rank, shown, args[3:], path, walk.follow(op), refs[:num_reads], refs[num_reads:], kept[:num_raises], kept[num_raises:], bool(at[0]), at[1],
        )
        walk.points.append(point)
        walk.outside += (Outside(point, place) for place in outside)

    return run


def _ref(cell: Cell, facts: _Facts, trees: list[object]) -> Callable:
    buffer: Buffer = facts.buffers[cell.buffer]
    extents, lanes, name, nodes = facts.extents[buffer.name], range(facts.lanes), buffer.name, facts.nodes
    is_input = buffer.kind is Kind.INPUT
    spreads = (cell.lane, *cell.key)
    first = len(trees)
    trees += [cell.node, cell.call, *(0 if isinstance(x, Every) else x for x in spreads)]
    last = len(trees)
    is_single = not any(isinstance(x, Every) for x in spreads)
    ranges = (lanes, *extents)

    def exists(node: int, lane: int, key: tuple[int, ...]) -> bool:
        return 0 <= node < nodes and lane in lanes and all([k in extent for k, extent in zip(key, extents)])

    def single(rank: Rank, at: tuple[int, ...], outside: list[Place]) -> Ref:
        node, e, lane, *key = at[first:last]
        place = (name, node, lane, e if is_input else -1, *key)
        if exists(node, lane, key):
            return Ref((place,), e)
        outside.append(place)
        return Ref((), e)

    def several(rank: Rank, at: tuple[int, ...], outside: list[Place]) -> Ref:
        node, e, *values = at[first:last]
        call = e if is_input else -1
        over = [
            (x,) if not isinstance(s, Every) else r if s is ALL else [y for y in r if y != rank[1]] for x, s, r in zip(values, spreads, ranges)
        ]
        found = [(name, node, lane, call, *key) for lane, *key in product(*over)]
        outside += (p for p in found if not exists(node, p[2], p[4:]))
        return Ref(tuple(p for p in found if exists(node, p[2], p[4:])), e)

    return single if is_single else several


def _count(event: Event, promise: Promise, is_raise: bool, facts: _Facts, trees: list[object]) -> Callable:
    flag = facts.flags[promise.flag]
    first, num_on = len(trees), len(flag.on)
    trees += [promise.node, promise.lane, promise.call, *promise.key]
    last = len(trees)

    def count(mine: Rank, at: tuple[int, ...]) -> Count:
        other, e, key = at[first : first + 2], at[first + 2], at[first + 3 : last]
        raised_for, by = (other, mine) if is_raise else (mine, other)
        extents, in_box = facts.box(flag, key[:num_on])
        in_box = in_box and _in_scope(flag.scope, by, raised_for, facts) and all([x in extent for x, extent in zip(key[num_on:], extents)])
        if flag.each:
            return Count(event, (flag.name, *raised_for, *by, *key), e + 1, e, key, in_box)
        size, index = 1, 0
        for x, extent in zip(key[num_on:], extents):
            size, index = size * len(extent), index * len(extent) + x - extent.start
        return Count(event, (flag.name, *raised_for, *by, *key[:num_on]), e * size + index + 1, e, key, in_box)

    return count


def _in_scope(scope: Scope, by: Rank, raised_for: Rank, facts: _Facts) -> bool:
    if not all(0 <= n < facts.nodes and 0 <= j < facts.lanes for n, j in (by, raised_for)):
        return False
    same_node, same_lane = by[0] == raised_for[0], by[1] == raised_for[1]
    match scope:
        case Scope.SELF:
            return same_node and same_lane
        case Scope.NODE:
            return same_node
        case Scope.LANES:
            return same_node and not same_lane
    return same_lane and not same_node


# ---- one rank's walk


class _Walk:
    """The points of one rank. Of each stream: the points that its next op follows, and the ends of unordered sets that no join has passed."""

    def __init__(self, rank: Rank, outside: list[Outside]):
        self.rank, self.outside = rank, outside
        self.points: list[Point] = []
        self.tails: dict[str, tuple[int, ...]] = {}
        self.open: dict[str, tuple[int, ...]] = {}

    def run(self, body: tuple[Callable, ...], args: tuple[int, ...], path: tuple[int, ...]) -> None:
        for i, step in enumerate(body):
            step(self, args, (*path, i))

    def follow(self, op: Op) -> tuple[int, ...]:
        """What the next point follows; it becomes the tail of its stream."""
        after = self.tails.get(op.stream, ())
        if op.kind is OpKind.JOIN:
            after += self.open.pop(op.stream, ())
        self.tails[op.stream] = (len(self.points),)
        return after

    def each(self, stream: str, body: tuple[Callable, ...], args: tuple[int, ...], path: tuple[int, ...], trips: Iterator[int]) -> None:
        """An unordered set: every iteration follows what stands before the set, and nothing after it until a join."""
        before, ends = self.tails.get(stream, ()), self.open.pop(stream, ())
        for x in trips:
            self.tails[stream] = before
            self.run(body, (*args, x), (*path, x))
            if self.tails[stream] is not before:
                ends += self.tails[stream]
            ends += self.open.pop(stream, ())
        self.tails[stream], self.open[stream] = before, ends
