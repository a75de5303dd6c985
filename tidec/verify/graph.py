"""Order on a small topology: the explicit happens-before graph of a program, every op of every rank a node of it.

A copy, sum, landing, signal or wait is one event; a put is three: its start, DONE (source reusable) and THEN (arrived). An event comes before
another if streams and waits lead from the one to the other. A wait's threshold is counted, not matched by name: it is served by the raise that
brings its counter there. What is assumed of the hardware is only that a stream runs in order, and that completions and arrivals of the puts of
one rank to one peer, over one RMA context, keep their order within one counter.

This is the only file that imports networkx.
"""
from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import lcm

import networkx as nx

from tidec.index import Node
from tidec.index.expr import Op as IndexOp
from tidec.index.expr import symbols
from tidec.interpret.unfold import Counter, Count, Place, Point, UnfoldError, Unfolding, show_counter, show_place, unfold
from tidec.schedule.branch import branch
from tidec.schedule.program import Event, OpKind, Program, statements


class Finding(Enum):
    """What can be wrong with the order of a program."""

    RACE = "race"                      # two conflicting accesses are not ordered
    AMBIGUOUS = "ambiguous counter"    # two raises of one counter are not ordered
    MISCOUNT = "wrong count"           # a counter reaches a number by another promise than the declared box says
    MISSING = "missing producer"       # nobody raises what a wait waits for
    CYCLE = "cycle"                    # ops wait for each other in a circle
    POSITION = "position"              # a wait stands before its producer in the order of issue
    EARLY_RELEASE = "early release"    # a block is overwritten while a put may still read it, or freed while any op may
    OUTSIDE = "out of bounds"          # an access of a block that does not exist
    CONTEXT = "no such context"        # a put over another RMA context than 0..stripes-1
    UNRUNNABLE = "unrunnable"          # a loop that cannot be run

    @property
    def code(self) -> str:
        """The code of the claim that such a program breaks."""
        return _CODES[self]


_CODES = {
    Finding.RACE: "V201", Finding.AMBIGUOUS: "V202", Finding.MISCOUNT: "V202", Finding.MISSING: "V203", Finding.CYCLE: "V204", Finding.POSITION: "V204",
    Finding.EARLY_RELEASE: "V205", Finding.OUTSIDE: "V102", Finding.CONTEXT: "V102", Finding.UNRUNNABLE: "V102",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: what it is, the points that take part in it, and the cell or counter in words. times: how often the same ops have it."""

    finding: Finding
    points: tuple[Point, ...]
    where: str
    times: int = 1

    @property
    def code(self) -> str:
        return self.finding.code

    def __str__(self) -> str:
        between = {Finding.RACE: " is not ordered with ", Finding.EARLY_RELEASE: " may still read it at "}.get(self.finding, ", ")
        return f"{self.code} {self.finding.value}: {self.where}: {between.join(map(str, self.points))}"


@dataclass(frozen=True, slots=True)
class GraphReport:
    """What the explicit graph of a program at one node count shows. problems: one for each pair of ops of the text; empty if clean."""

    nodes: int
    calls: int
    num_ops: int
    num_events: int
    problems: tuple[Problem, ...]

    @property
    def is_clean(self) -> bool:
        return not self.problems

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of all problems, sorted, each once."""
        return tuple(sorted({p.code for p in self.problems}))

    def of(self, finding: Finding) -> tuple[Problem, ...]:
        """The problems of one kind."""
        return tuple(p for p in self.problems if p.finding is finding)


@dataclass(frozen=True, slots=True)
class At:
    """An event of one concrete op: its statement's id, the values of n, j, e and the loops, and which event of it.

    Loops that are left out may have any value (the first point that fits is taken).
    """

    op: int
    values: tuple[tuple[str, int], ...]
    event: Event = Event.END

    @staticmethod
    def of(op: int, values: Mapping[str, int], event: Event = Event.END) -> At:
        return At(op, tuple(sorted(values.items())), event)


def check(program: Program, nodes: int, calls: int = 4, drop: int = -1) -> GraphReport:
    """Everything that the explicit graph shows on `nodes` nodes and that many calls. drop: the id of an op that is left out, -1 for none."""
    try:
        unfolding = unfold(branch(program, nodes), nodes, calls, drop)
    except UnfoldError as reason:
        return GraphReport(nodes, calls, 0, 0, (Problem(Finding.UNRUNNABLE, (), str(reason)),))
    graph = HappensBefore(unfolding)
    return GraphReport(nodes, calls, sum(map(len, unfolding.points)), len(graph.events), graph.problems())


def ordered(program: Program, nodes: int, first: At, then: At, drop: int = -1) -> tuple[str, ...]:
    """The path of ops by which the first event happens before the start of the second op; empty if there is none.

    Calls may be any numbers, also negative ones: they are moved together, so that parities stay. What calls before the first of the two do is left
    out: a path between two events leads through ops that stand between them in the common order.
    Raises KeyError where a point does not exist at this node count.
    """
    program = branch(program, nodes)
    calls = (dict(first.values)["e"], dict(then.values)["e"])
    period = _period(program)
    shift = -(min(calls) // period) * period
    graph = HappensBefore(unfold(program, nodes, max(calls) + shift + 1, drop))
    return graph.path(first, then, shift)


def _period(program: Program) -> int:
    """A number of calls after which all index expressions of the program repeat: a multiple of what they divide the call by."""
    found = {2}

    def look(node: object) -> None:
        if isinstance(node, Node) and node.op is not IndexOp.SYM:
            if node.op in (IndexOp.MOD, IndexOp.DIV) and "e" in symbols(node.args[0]):
                found.add(node.args[1])
            for a in node.args:
                look(a)

    for s in statements(program):
        for cell in (*s.op.reads, *s.op.writes):
            for x in (*cell.key, cell.node, cell.lane):
                look(x)
        for p in (*s.op.waits, *(r.promise for r in s.op.raises)):
            for x in (*p.key, p.node, p.lane):
                look(x)
        for x in (*s.conds, *(y for loop in s.loops for y in (loop.lo, loop.hi))):
            look(x)
    return lcm(*found)


class HappensBefore:
    """The graph: events of all ranks, and the edges that streams, puts and waits give."""

    def __init__(self, unfolding: Unfolding):
        self.unfolding = unfolding
        self.events: list[tuple[Point, Event]] = []
        self.after: list[list[int]] = []                       # the events that come directly before an event
        self.found: list[Problem] = [Problem(Finding.OUTSIDE, (o.point,), show_place(o.place)) for o in unfolding.outside]
        self._raises: dict[Counter, list[tuple[int, Count]]] = {}
        waits: list[tuple[int, Count]] = []
        for points in unfolding.points:
            starts: list[int] = []
            for point in points:
                starts.append(self._add(point, starts, waits))
        self._count()
        for event, wanted in waits:
            self._serve(event, wanted)

    def _event(self, point: Point, what: Event, after: list[int]) -> int:
        self.events.append((point, what))
        self.after.append(after)
        return len(self.events) - 1

    def _add(self, point: Point, starts: list[int], waits: list[tuple[int, Count]]) -> int:
        start = self._event(point, Event.END, [starts[i] for i in point.after])
        if point.op.kind is OpKind.PUT:
            if not 0 <= point.context < self.unfolding.program.stripes:
                self.found.append(Problem(Finding.CONTEXT, (point,), f"context {point.context}"))
            self._event(point, Event.DONE, [start])
            self._event(point, Event.THEN, [start])
        for kept in point.raises:
            self._raises.setdefault(kept.counter, []).append((_end(start, kept.event), kept))
        waits += ((start, wanted) for wanted in point.waits)
        return start

    def _count(self) -> None:
        """Each counter is raised in the order of its declared box: the i-th raise is the one whose box says i."""
        for counter, raises in self._raises.items():
            for i, (event, kept) in enumerate(raises, 1):
                if not kept.in_box or kept.value != i:
                    what = f"{show_counter(counter)} is {i} after key {list(kept.key)} of call {kept.call}, the box says {kept.value}"
                    self._problem(Finding.MISCOUNT, what if kept.in_box else f"{show_counter(counter)}: key {list(kept.key)} is not declared", event)

    def _serve(self, event: int, wanted: Count) -> None:
        """The edge from the raise that brings the counter to the wait's threshold, which must be the promise that the wait names."""
        if wanted.call < 0 and wanted.value <= 0:
            return
        point, raises = self.events[event][0], self._raises.get(wanted.counter, [])
        if not wanted.in_box:
            self._problem(Finding.MISSING, f"{show_counter(wanted.counter)}: key {list(wanted.key)} is not declared", event)
        elif wanted.value > len(raises):
            if wanted.call < self.unfolding.calls:
                self._problem(Finding.MISSING, f"{show_counter(wanted.counter)} never reaches {wanted.value}", event)
            else:
                self._problem(Finding.POSITION, f"{show_counter(wanted.counter)} is awaited a call ahead", event)
        else:
            source, kept = raises[wanted.value - 1]
            self.after[event].append(source)
            if (kept.call, kept.key) != (wanted.call, wanted.key):
                self._problem(Finding.MISCOUNT, f"{show_counter(wanted.counter)} reaches {wanted.value} by key {list(kept.key)} of call {kept.call}", source, event)
            if self.events[source][0].position >= point.position:
                self._problem(Finding.POSITION, show_counter(wanted.counter), source, event)

    def _problem(self, finding: Finding, where: str, *events: int) -> None:
        self.found.append(Problem(finding, tuple(self.events[x][0] for x in events), where))

    # ---- readings

    def problems(self) -> tuple[Problem, ...]:
        """All problems, one for each kind and pair of ops, the with the first example."""
        order = self._sweep()
        if len(order) < len(self.events):
            stuck = set(range(len(self.events))) - set(order)
            circle = nx.find_cycle(nx.DiGraph((a, b) for b in stuck for a in self.after[b] if a in stuck))
            self._problem(Finding.CYCLE, "ops wait for each other", *(a for a, _ in circle))
        merged: dict[tuple, Problem] = {}
        for p in self.found:
            key = (p.finding, *(x.op.id for x in p.points)) if p.finding is not Finding.CYCLE else (p.finding,)
            old = merged.get(key)
            merged[key] = p if old is None else Problem(old.finding, old.points, old.where, old.times + 1)
        return tuple(merged.values())

    def path(self, first: At, then: At, shift: int = 0) -> tuple[str, ...]:
        """The ops on a shortest path from the first event to the start of the second op, moved by `shift` calls; empty if there is none."""
        a, b = _end(self._find(first, shift), first.event), self._find(then, shift)
        leads_to = {b: b}
        front = deque([b])
        while front and a not in leads_to:
            x = front.popleft()
            for y in self.after[x]:
                if y not in leads_to:
                    leads_to[y] = x
                    front.append(y)
        path = [a] if a in leads_to and a != b else []
        while path and path[-1] != b:
            path.append(leads_to[path[-1]])
        return tuple(self._words(x, -shift) for x in path)

    def _words(self, event: int, shift: int) -> str:
        point, what = self.events[event]
        ending = {Event.DONE: "source reusable: ", Event.THEN: "arrived: "}.get(what, "")
        return ending + str(point).replace(f"call {point.call} ", f"call {point.call + shift} ", 1)

    def _find(self, at: At, shift: int) -> int:
        values = dict(at.values)
        rank = (values.pop("n"), values.pop("j"))
        values["e"] += shift
        for x, (point, what) in enumerate(self.events):
            if what is Event.END and point.op.id == at.op and point.rank == rank:
                has = dict(zip(point.names, point.values))
                if all(has.get(name, value) == value for name, value in values.items()):
                    return x
        raise KeyError(f"op {at.op} has no point {dict(at.values)} on {self.unfolding.nodes} nodes")

    # ---- races: one pass in topological order, with the set of all earlier events as the bits of an int

    def _sweep(self) -> list[int]:
        """Looks for unordered accesses and raises. Returns the events in topological order; events of a cycle, and what follows it, are not in it."""
        num = len(self.events)
        follows: list[list[int]] = [[] for _ in range(num)]
        missing = [len(a) for a in self.after]
        for b, sources in enumerate(self.after):
            for a in sources:
                follows[a].append(b)
        users = [len(f) for f in follows]
        order = [x for x in range(num) if not missing[x]]
        earlier: dict[int, int] = {}
        cells: dict[Place, tuple[int, list[int]]] = {}         # the last writer's end (-1: none) and the readers' ends since
        counters = self._predecessors()
        for x in order:
            bits = 0
            for a in self.after[x]:
                bits |= earlier[a] | (1 << a)
                users[a] -= 1
                if not users[a]:
                    del earlier[a]
            if users[x]:
                earlier[x] = bits
            point, what = self.events[x]
            if what is Event.END:
                self._access(x, point, bits, cells)
            for a, kept in counters.get(x, ()):
                if not bits >> a & 1:
                    self._problem(Finding.AMBIGUOUS, show_counter(kept), a, x)
            for b in follows[x]:
                missing[b] -= 1
                if not missing[b]:
                    order.append(b)
        return order

    def _predecessors(self) -> dict[int, list[tuple[int, Counter]]]:
        """For the raises of each counter but the first: the event that must come before its event (for puts to one peer over one context: before its start)."""
        result: dict[int, list[tuple[int, Counter]]] = {}
        for counter, raises in self._raises.items():
            for (a, _), (b, _) in zip(raises, raises[1:]):
                (p, what_a), (q, what_b) = self.events[a], self.events[b]
                if what_a is what_b is not Event.END and _way(p) == _way(q):
                    a, b = a - _OFFSET[what_a], b - _OFFSET[what_b]
                result.setdefault(b, []).append((a, counter))
        return result

    def _access(self, x: int, point: Point, bits: int, cells: dict[Place, tuple[int, list[int]]]) -> None:
        is_put = point.op.kind is OpKind.PUT
        read_end, write_end = (x + 1, x + 2) if is_put else (x, x)
        for ref in point.reads:
            for place in ref.places:
                writer, readers = cells.setdefault(place, (-1, []))
                if writer >= 0 and self.events[writer][0].op.kind is OpKind.FREE:
                    self._problem(Finding.EARLY_RELEASE, show_place(place), x, writer)
                elif writer >= 0 and not bits >> writer & 1:
                    self._problem(Finding.RACE, show_place(place), writer, x)
                readers.append(read_end)
        for ref in point.writes:
            for place in ref.places:
                writer, readers = cells.get(place, (-1, ()))
                if writer >= 0 and not bits >> writer & 1:
                    self._problem(Finding.RACE, show_place(place), writer, x)
                for r in readers:
                    if r != read_end and not bits >> r & 1:
                        is_early = self.events[r][1] is Event.DONE or point.op.kind is OpKind.FREE
                        self._problem(Finding.EARLY_RELEASE if is_early else Finding.RACE, show_place(place), r, x)
                cells[place] = (write_end, [])


_OFFSET = {Event.DONE: 1, Event.THEN: 2}


def _end(start: int, event: Event) -> int:
    """The event in which the op that starts at `start` raises, given the order in which a put's events are added."""
    return start + _OFFSET.get(event, 0)


def _way(point: Point) -> tuple[object, ...]:
    place = point.writes[0].places[0] if point.writes and point.writes[0].places else ()
    return (*place[1:3], point.context)

