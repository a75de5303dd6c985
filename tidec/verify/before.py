"""Happens-before between two families, as a formula without quantifiers: a bounded unfolding of their wait edges.

The event of a point happens before another point starts if they are of one stream and ordered there, or if a wait before the second one names a
promise that the first one keeps, or that something keeps which the first one happens before. Which instance of a wait is tried follows from the
loops' names; a path that is missed is a false alarm, never a false proof.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator

from tidec.index import symbols
from tidec.schedule.program import Event, Loop, Promise, Statement, Step
from tidec.verify.families import World, mentions, solve
from tidec.verify.terms import Bool, Int, Term, Values

FAR = 99
DEPTH = 2        # waits on a path; enough for every shipped schedule


class Before:
    """Happens-before formulas of one world. `side` collects what is known of the promised events that they name."""

    def __init__(self, world: World):
        self.world = world
        self.side: dict[Term, None] = {}
        self._sources: dict[tuple, tuple[list[tuple[Statement, Event, Values, Bool]], Bool]] = {}
        self._hops: dict[tuple[int, Event], dict[str, int]] = {}

    def source(self, wait: Statement, v: Values) -> list[tuple[Statement, Event, Values, Bool]]:
        """The ops that keep the promise which the wait names, as points with the condition under which they are the one.

        The flag's own claims prove that the promise is kept once, so the indices that its key does not give are just named.
        """
        w, t = self.world, self.world.terms
        at = (wait.op.id, *(_key(v[x]) for x in ("n", "j", *wait.names)))
        if at not in self._sources:
            promise = wait.op.waits[0]
            key, node, lane, call = w.reads(promise.key, v), w.read(promise.node, v), w.read(promise.lane, v), w.read(promise.call, v)
            points = []
            for s, event, kept in w.raisers[promise.flag]:
                values: dict[str, Int] = {"M": w.nodes, "n": node, "j": lane, "e": call}
                for x, value in zip(kept.key, key, strict=True):
                    if (name := w.is_symbol(x)) and name not in values:
                        values[name] = value
                once = {name: lo for name, lo, hi in w.small_loops(s) if hi - lo == 1}
                for name in s.names:
                    if name not in values:
                        values[name] = once[name] if name in once else t.skolem(f"{s.op.label}.{name}")
                u = Values(values)
                is_it = [*w.domain(s, u), t.equal(w.reads(kept.key, u), key), t.eq(w.read(kept.node, u), v["n"]), t.eq(w.read(kept.lane, u), v["j"])]
                points.append((s, event, u, t.every([*is_it, t.eq(w.read(kept.call, u), call)])))
            known = t.implies(t.every(w.domain(wait, v)), t.some(c for *_, c in points)) if points else True
            self._sources[at] = (points, known)
        return self._sources[at][0]

    def rely_on(self, wait: Statement, v: Values) -> None:
        """Somebody keeps the promise that the wait names: what is known of the points that `source` gave joins `side`."""
        known = self._sources[(wait.op.id, *(_key(v[x]) for x in ("n", "j", *wait.names)))][1]
        if isinstance(known, Term):
            self.side[known] = None

    def hops(self, a: Statement, event: Event) -> dict[str, int]:
        """For every stream, the least number of waits on a path from the event to it."""
        at = (a.op.id, event)
        if at not in self._hops:
            w = self.world
            known = {a.op.stream: 0} if event is Event.END else {}
            for _ in range(8):
                for stream, waits in w.waits.items():
                    for wait in waits:
                        for s, e, _ in w.raisers[wait.op.waits[0].flag]:
                            reached = 1 if (s is a and e is event) else 1 + known.get(s.op.stream, FAR)
                            known[stream] = min(reached, known.get(stream, FAR))
            self._hops[at] = known
        return self._hops[at]

    def flags(self, a: Statement, event: Event, b: Statement, depth: int) -> list[str]:
        """The flags whose waits may be the last one on a path from the event to b of at most `depth` waits, in the order of the text."""
        hops = self.hops(a, event)
        return list(dict.fromkeys(
            flag for wait in self.world.waits.get(b.op.stream, ()) if (flag := wait.op.waits[0].flag)
            and any((s is a and e is event) or hops.get(s.op.stream, FAR) <= depth - 1 for s, e, _ in self.world.raisers[flag])))

    def formula(self, a: Statement, u: Values, event: Event, b: Statement, v: Values, depth: int, last: str | None = None) -> Bool:
        """The event of a at u happens before b starts at v, by a path of at most `depth` waits. last: only by those whose last wait is for this flag."""
        w, t = self.world, self.world.terms
        ways: list[Bool] = []
        hops = self.hops(a, event)
        if last is None and event is Event.END and a.op.stream == b.op.stream:
            ways.append(t.every((w.same_rank(u, v), w.program_order(a, u, b, v))))
        if depth == 0:
            return t.some(ways)
        for wait in w.waits.get(b.op.stream, ()):
            flag = wait.op.waits[0].flag
            if last is not None and flag != last:
                continue
            useful = {s.op.id for s, e, _ in w.raisers[flag] if (s is a and e is event) or hops.get(s.op.stream, FAR) <= depth - 1}
            if not useful:
                continue
            # The last hop leaves from a's own rank, so the lanes that it names are a's; further ones may leave from any lane in sight.
            nearest = min(hops.get(s.op.stream, FAR) for s, *_ in w.raisers[flag])
            for x, stands in self._before(wait, b, v, a, u, event, [u["j"]]):
                for s, e, kept in w.raisers[flag]:
                    if s is a and e is event:
                        ways.append(t.every((stands, self._names(wait, x, kept, u))))
                if nearest == 0:
                    ways += self._through(wait, x, stands, a, u, event, 0)
            if nearest <= depth - 1 and depth > 1:
                for x, stands in self._before(wait, b, v, a, u, event, lanes_of((a, u), (b, v))):
                    ways += self._through(wait, x, stands, a, u, event, depth - 1)
        return t.some(ways)

    def _before(self, wait: Statement, b: Statement, v: Values, a: Statement, u: Values, event: Event, pool: list[Int]) -> Iterator[tuple[Values, Bool]]:
        """Instances of a wait that stand before b, each with the condition under which it does."""
        w, t = self.world, self.world.terms
        for x in self.instances(wait, b, v, a, u, event, pool):
            stands = t.every([w.program_order(wait, x, b, v), *w.domain(wait, x)])
            if stands is not False:
                yield x, stands

    def _through(self, wait: Statement, x: Values, stands: Bool, a: Statement, u: Values, event: Event, depth: int) -> list[Bool]:
        """The ways from a to the wait at x by what keeps its promise, with at most `depth` more waits."""
        t, hops = self.world.terms, self.hops(a, event)
        ways = []
        for s, _, y, is_it in self.source(wait, x):
            if hops.get(s.op.stream, FAR) <= depth and is_it is not False:
                path = self.formula(a, u, event, s, y, depth)
                if path is not False:
                    self.rely_on(wait, x)
                    ways.append(t.every((stands, is_it, path)))
        return ways

    def _names(self, wait: Statement, x: Values, kept: Promise, u: Values) -> Bool:
        """The wait at x names the promise that a raiser keeps at u, for the rank of x."""
        w, t = self.world, self.world.terms
        promise = wait.op.waits[0]
        named = (*w.reads(promise.key, x), w.read(promise.call, x), w.read(promise.node, x), w.read(promise.lane, x), x["n"], x["j"])
        return t.equal(named, (*w.reads(kept.key, u), w.read(kept.call, u), u["n"], u["j"], w.read(kept.node, u), w.read(kept.lane, u)))

    def instances(self, wait: Statement, b: Statement, v: Values, a: Statement, u: Values, event: Event | None, pool: list[Int]) -> Iterator[Values]:
        """The points of a wait that may carry the order from a to b: b's own iteration, or one that a's indices name; lanes are taken from `pool`."""
        w, t = self.world, self.world.terms
        promise = wait.op.waits[0]
        depth = 1 + len(w.shared(wait, b))
        given: list[dict[str, Int]] = [{}]
        for r in a.op.raises:
            if r.promise.flag == promise.flag and r.event is event:
                at = Values({"M": w.nodes, "n": v["n"], "j": v["j"], "e": u["e"]})
                named: dict[str, Int] = {}
                for x, y in zip(promise.key, r.promise.key, strict=True):
                    for loop in wait.loops:
                        if loop.name not in named and set(symbols(x)) <= {loop.name, "M", "n", "j"} and mentions(x, loop.name):
                            if (found := solve(t, x, loop.name, w.read(y, u), at)) is not None:
                                named[loop.name] = found
                given.append(named)
        def is_any(loop: Loop) -> bool:
            return not any(mentions(x, loop.name) for x in (*promise.key, promise.node, promise.lane, promise.call))

        def begin(loop: Loop, values: dict[str, Int]) -> Int:
            return 1 if loop.step is Step.DOUBLING else w.read(loop.lo, Values(values))

        calls = [u["e"]]
        back = solve(t, promise.call, "e", u["e"], Values({}))
        if back is not None and back is not u["e"]:
            calls.append(back)
        seen = set()
        for cut in dict.fromkeys((depth, 0)):
            for named in given:
                for call in calls if cut == 0 else [v["e"]]:
                    values: dict[str, Int] = {"M": w.nodes, "n": v["n"], "j": v["j"], "e": call}
                    open_lanes: list[str] = []
                    for i, loop in enumerate(wait.loops, 1):
                        near = v if i < cut else u
                        if i >= cut and loop.name in named:
                            values[loop.name] = named[loop.name]
                        elif i >= cut and loop.over_lanes:
                            open_lanes.append(loop.name)
                        elif i >= cut and is_any(loop) and (i == len(wait.loops) or loop.name not in u and all(l.name in named for l in wait.loops[i:])):
                            values[loop.name] = begin(loop, values)     # any trip of the innermost loop that nothing gives will do
                        elif loop.name in near:
                            values[loop.name] = near[loop.name]
                        elif loop.name in v:
                            values[loop.name] = v[loop.name]
                        elif i >= cut and is_any(loop):
                            values[loop.name] = begin(loop, values)
                        else:
                            break
                    else:
                        for pick in itertools.product(pool, repeat=len(open_lanes)):
                            point = values | dict(zip(open_lanes, pick))
                            key = tuple(_key(point[x]) for x in wait.names)
                            if key not in seen:
                                seen.add(key)
                                yield Values(point)


def lanes_of(*points: tuple[Statement, Values]) -> list[Int]:
    """The lanes that the points name: their ranks' and their lane loops'."""
    out: dict[object, Int] = {}
    for s, v in points:
        for x in ("j", *(l.name for l in s.loops if l.over_lanes)):
            out[_key(v[x])] = v[x]
    return list(out.values())


def _key(x: Int) -> object:
    return ("term", x.uid) if isinstance(x, Term) else x
