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
    shown = names[3:]
    reads = tuple(_ref(c, names, facts) for c in op.reads)
    writes = tuple(_ref(c, names, facts) for c in op.writes)
    raises = tuple(_count(r.event, r.promise, names, facts, True) for r in op.raises)
    waits = tuple(_count(Event.END, p, names, facts, False) for p in op.waits)
    seed = compiled(op.seed, names)

    def run(walk: _Walk, args: tuple[int, ...], path: tuple[int, ...]) -> None:
        outside: list[Place] = []
        point = Point(
            op, walk.rank, shown, args[3:], path, walk.follow(op), tuple(f(args, outside) for f in reads), tuple(f(args, outside) for f in writes),
            tuple(f(args) for f in raises), tuple(f(args) for f in waits), bool(seed(*args)),
        )
        walk.points.append(point)
        walk.outside += (Outside(point, place) for place in outside)

    return run


def _ref(cell: Cell, names: tuple[str, ...], facts: _Facts) -> Callable:
    buffer: Buffer = facts.buffers[cell.buffer]
    extents, lanes, name = facts.extents[buffer.name], range(facts.lanes), buffer.name
    node, call = compiled(cell.node, names), compiled(cell.call, names)
    lane = cell.lane if isinstance(cell.lane, Every) else compiled(cell.lane, names)
    keys = tuple(k if isinstance(k, Every) else compiled(k, names) for k in cell.key)
    is_input = buffer.kind is Kind.INPUT
    j_at = names.index("j")

    def spread(what: object, extent: range, args: tuple[int, ...]) -> tuple[int, ...] | range:
        if not isinstance(what, Every):
            return (what(*args),)
        return extent if what is ALL else tuple(x for x in extent if x != args[j_at])

    def ref(args: tuple[int, ...], outside: list[Place]) -> Ref:
        at, e = node(*args), call(*args)
        places = []
        for x in spread(lane, lanes, args):
            for key in product(*(spread(k, extent, args) for k, extent in zip(keys, extents))):
                place = (name, at, x, e if is_input else -1, *key)
                if 0 <= at < facts.nodes and x in lanes and all(k in extent for k, extent in zip(key, extents)):
                    places.append(place)
                else:
                    outside.append(place)
        return Ref(tuple(places), e)

    return ref


def _count(event: Event, promise: Promise, names: tuple[str, ...], facts: _Facts, is_raise: bool) -> Callable:
    flag = facts.flags[promise.flag]
    node, lane, call = (compiled(x, names) for x in (promise.node, promise.lane, promise.call))
    keys = tuple(compiled(k, names) for k in promise.key)
    num_on = len(flag.on)
    n_at, j_at = names.index("n"), names.index("j")

    def count(args: tuple[int, ...]) -> Count:
        mine, other = (args[n_at], args[j_at]), (node(*args), lane(*args))
        raised_for, by = (other, mine) if is_raise else (mine, other)
        e, key = call(*args), tuple(k(*args) for k in keys)
        extents, in_box = facts.box(flag, key[:num_on])
        in_box = in_box and _in_scope(flag.scope, by, raised_for, facts) and all(x in extent for x, extent in zip(key[num_on:], extents))
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
    return {
        Scope.SELF: same_node and same_lane, Scope.NODE: same_node, Scope.LANES: same_node and not same_lane, Scope.RAIL: same_lane and not same_node,
    }[scope]


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
