"""The order of a program that is no theorem: every pair of conflicting accesses looked up on the explicit graph, and what the outputs then hold.

M nodes, L lanes, n node, j lane, e call, p part, c contributor, b sub-slice, w wave.

The events of `recheck_unfold.py` are swept in topological order with the set of all earlier accesses as the bits of an int. As no two conflicting
accesses are unordered, every order gives the same contents, so the sweep carries them along: who contributed what to a block, in which grouping.
"""
from __future__ import annotations

from tidec.verify.recheck_index import read
from tidec.verify.recheck_layout import Facts
from tidec.verify.recheck_unfold import CALLS, DONE, START, THEN, Place, Point, Unfolding
from tidec.verify.recheck_words import refuted

_GATHER_NODES = 8
ZERO = ("zero",)


def graph_nodes(facts: Facts) -> tuple[int, ...]:
    """The node counts to unfold: the plan's own where that is at most 2W + 2 (8 in an all-gather), else the ones with two and three waves, full and not."""
    if facts.is_gather:
        return (facts.nodes,) if facts.nodes <= _GATHER_NODES else (2, 3, 5, 8)
    width = facts.knobs["W"]
    if facts.nodes <= 2 * width + 2:
        return (facts.nodes,)
    tried = (width + 1, 2 * width + 1, 2 * width + 2)
    return tuple(M for M in tried if all(read(p, {"M": M}) for p in facts.program["premises"]))


def check_graph(facts: Facts, waits: list, nodes: int) -> None:
    """Everything that the explicit graph shows at that node count. Raises V102, V103, V105, V106, V201 to V205; TooLarge where it has too many events."""
    unfolding = Unfolding(facts, nodes, waits)
    for counter, raises in unfolding.raises.items():
        for i, kept in enumerate(raises, 1):
            if kept.value != i:
                raise refuted("V202", facts.file, f"{counter[0]} is {i} where its box says {kept.value}", example=(str(unfolding.events[kept.event][0]),))
    _Sweep(unfolding).run()


class _Sweep:
    """One pass over all events, none before what comes before it."""

    def __init__(self, unfolding: Unfolding):
        self.u, self.facts = unfolding, unfolding.facts
        self.blocks = {b["name"]: b["block"] for b in self.facts.program["buffers"]}
        self.at_zero = {b["name"] for b in self.facts.program["buffers"] if b["rests_at_zero"]}
        self.bit: dict[int, int] = {}                          # of events that somebody may have to come after
        for x, (point, _) in enumerate(unfolding.events):
            if point.reads or point.writes:
                self.bit[x] = len(self.bit)
        self.before: dict[int, list[tuple[int, tuple]]] = {}   # raises of one counter: the event that must come before an event
        for counter, raises in unfolding.raises.items():
            for a, b in zip(raises, raises[1:]):
                self._in_order(counter, a, b)
        self.cells: dict[Place, tuple[int, list[int]]] = {}    # the last writer's end (-1: none) and the readers' ends since
        self.memory: dict[Place, tuple] = {}
        self.outputs: dict[tuple, tuple] = {}                  # (n, j, e, place) -> what was there at the end of the call

    def _in_order(self, counter: tuple, a: object, b: object) -> None:
        first, then = a.event, b.event
        (p, what), (q, other) = self.u.events[first], self.u.events[then]
        if what == other != START and p.writes[0][0][1:3] == q.writes[0][0][1:3] and a.context == b.context:
            first, then = first - what, then - other           # puts to one peer over one context end in the order of their starts
        self.bit.setdefault(first, len(self.bit))
        self.before.setdefault(then, []).append((first, counter))

    def run(self) -> None:
        after, events = self.u.after, self.u.events
        follows: list[list[int]] = [[] for _ in events]
        missing = [len(a) for a in after]
        for b, sources in enumerate(after):
            for a in sources:
                follows[a].append(b)
        left = [len(f) for f in follows]
        ready = [x for x in range(len(events)) if not missing[x]]
        earlier: dict[int, int] = {}
        bit, num = self.bit, 0
        while ready:
            x = ready.pop()
            num += 1
            bits = 0
            for a in after[x]:
                bits |= earlier[a]
                left[a] -= 1
                if not left[a]:
                    del earlier[a]
            point, what = events[x]
            if what == START and (point.reads or point.writes):
                self._access(x, point, bits)
                self._move(point)
            for a, counter in self.before.get(x, ()):
                if not bits >> bit[a] & 1:
                    raise refuted("V202", self.facts.file, f"two raises of {counter[0]} may come in any order", example=(str(events[a][0]), str(point)))
            if left[x]:
                earlier[x] = bits | 1 << bit[x] if x in bit else bits
            for b in follows[x]:
                missing[b] -= 1
                if not missing[b]:
                    ready.append(b)
        if num < len(events):
            stuck = next(p for x, (p, _) in enumerate(events) if missing[x])
            raise refuted("V204", self.facts.file, "ops wait for each other in a circle", example=(str(stuck),))
        self._check_outputs()

    # ---- order

    def _access(self, x: int, point: Point, bits: int) -> None:
        is_put = point.op["kind"] == "put"
        read_end, write_end = (x + DONE, x + THEN) if is_put else (x, x)
        for place in (q for r in point.reads for q in r):
            writer, readers = self.cells.setdefault(place, (-1, []))
            if writer >= 0 and (self.u.events[writer][0].op["kind"] == "free" or not bits >> self.bit[writer] & 1):
                raise self._race("V205" if self.u.events[writer][0].op["kind"] == "free" else "V201", place, writer, point)
            readers.append(read_end)
        for place in (q for w in point.writes for q in w):
            writer, readers = self.cells.get(place, (-1, ()))
            for a in (*readers, writer):
                if a >= 0 and a != read_end and not bits >> self.bit[a] & 1:
                    raise self._race("V205" if self.u.events[a][1] == DONE or point.op["kind"] == "free" else "V201", place, a, point)
            self.cells[place] = (write_end, [])

    def _race(self, code: str, place: Place, other: int, point: Point) -> Exception:
        return refuted(code, self.facts.file, f"two accesses of {place[0]} are not ordered", example=(f"{self.u.nodes} nodes: {self.u.events[other][0]}", str(point)))

    # ---- contents

    def _value(self, place: Place) -> tuple:
        buffer, n, j, e, *key = place
        if e >= 0:
            return (self.blocks[buffer], n, j, e, *key)
        return self.memory.get(place, ZERO if buffer in self.at_zero else ("nothing",))

    def _move(self, point: Point) -> None:
        kind = point.op["kind"]
        if kind in ("copy", "put", "cast"):
            values = [self._value(p) for p in point.reads[0]]
            if kind == "cast":
                values = [("cast", *v) for v in values]
            targets = point.writes[0]
            if len(targets) % len(values):
                raise refuted("V105", self.facts.file, f"{kind}#{point.op['id']} moves blocks of another number than it fills")
            self.memory.update(zip(targets, values * (len(targets) // len(values))))
        elif kind == "zero":
            self.memory.update(dict.fromkeys(point.writes[0], ZERO))
        elif kind == "sum":
            value = ("sum", tuple(map(self._value, point.reads[0])), *map(self._value, point.reads[1]))
            self._give(point, point.writes[0][0], ("seed", value) if point.is_seed else value)
        elif kind == "land":
            self._land(point)
        elif kind == "read":
            for place in point.reads[0]:
                self.outputs[(*point.rank, point.call - 1, place)] = self._value(place)

    def _land(self, point: Point) -> None:
        """out[p, b, piece] += over the lanes in order the row of this lane in inbox[.., b, piece] of each."""
        sources, targets, lanes = point.reads[0], point.writes[0], self.facts.lanes
        if len(sources) != len(targets) * lanes:
            raise refuted("V105", self.facts.file, f"land#{point.op['id']} reads blocks of another number than it fills")
        for i, place in enumerate(targets):
            terms = tuple(v for o in range(lanes) if (v := self._value(sources[o * len(targets) + i])) is not ZERO)
            self._give(point, place, ("seed", *terms) if point.is_seed else (*self._value(place), *terms))

    def _give(self, point: Point, place: Place, value: tuple) -> None:
        self.memory[place] = value
        if self.blocks[place[0]] in ("out_slice", "out_row"):
            self.outputs[(*point.rank, point.call, place)] = value

    # ---- what it should be

    def _check_outputs(self) -> None:
        f, M = self.facts, self.u.nodes
        output = next(b["name"] for b in f.program["buffers"] if b["kind"] == "output")
        calls = range(CALLS - 1) if f.is_gather else range(CALLS)
        pieces = [(x, y) for x in range(f.cut[0]) for y in range(f.cut[1])] if f.cut else [()]
        for n in range(M):
            for j in range(f.lanes):
                for e in calls:
                    if f.is_gather:
                        wanted = {(e % f.landings, m, i): self._shard(m, i, e) for m in range(M) for i in range(f.lanes)}
                    elif M == 1:
                        wanted = {(p, *at): ("seed", self._sum("grad_row", n, j, e, p, j, *at)) for p in range(f.parts) for at in pieces}
                    else:
                        wanted = {(p, b, *at): self._landed(n, e, p, b, at) for p in range(f.parts) for b in range(f.lanes) for at in pieces}
                    for key, value in wanted.items():
                        if self.outputs.get((n, j, e, (output, n, j, -1, *key))) != value:
                            raise refuted("V106", f.file, f"{output}{list(key)} of rank {n}.{j} does not hold in call {e} what the collective gives",
                                          reason=f"unfolded on {M} nodes")

    def _shard(self, n: int, j: int, e: int) -> tuple:
        return ("cast", "shard", n, j, e, 0) if self.facts.has_cast else ("shard", n, j, e, 0)

    def _sum(self, block: str, n: int, j: int, e: int, *key: int) -> tuple:
        """Lane j's sum of one block over its node: the other lanes in order, then the own one."""
        own = (block, n, j, e, *key)
        return ("sum", tuple((block, n, i, e, *key) for i in range(self.facts.lanes) if i != j), own)

    def _landed(self, n: int, e: int, p: int, b: int, at: tuple[int, ...]) -> tuple:
        """Seed, then wave after wave, in a wave lane after lane: the node sums of all contributors, each once."""
        M, L, width, terms = self.u.nodes, self.facts.lanes, self.facts.knobs["W"], []
        for c in range(1, M + 1):
            terms.append(((c - 1) // width, (b - c % M) % L, (n - c) % M))
        return ("seed", *(self._sum("grad_slice", m, lane, e, p, n, b, *at) for _, lane, m in sorted(terms)))
