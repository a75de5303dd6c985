"""Every claim that says "before": flags count what they promise, waits find their producer, conflicting accesses are ordered.

Obligations are generated from what each op reads, writes, raises and awaits; nothing here knows a schedule.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from tidec.schedule.program import ALL, Cell, Event, Flag, OpKind, Promise, Scope, Statement, Step
from tidec.verify.before import DEPTH, FAR, Before, lanes_of
from tidec.verify.families import World, solve
from tidec.verify.judge import Judge
from tidec.verify.obligation import Obligation
from tidec.verify.terms import Bool, Int, Values

Raiser = tuple[Statement, Event, Promise]


def check_flags(w: World, judge: Judge) -> None:
    """V202: a threshold is reached by the promised event and no other. V203: every promise is kept. V204: the producer is issued first."""
    for name in w.raisers:
        check_flag(w, judge, w.flags[name])
    for s in w.statements:
        if s.op.waits:
            check_wait(w, judge, s)


def check_flag(w: World, judge: Judge, flag: Flag) -> None:
    """V202, V203 of what raises the flag."""
    raisers, name = w.raisers[flag.name], flag.name
    if not raisers:
        return
    streams = {s.op.stream for s, *_ in raisers} | {str(p.call) for *_, p in raisers}
    judge.claim(Obligation("V202", f"{name}: raised by one stream, in one call", (), len(streams) == 2, tuple(
        w.instance("raises", s, w.point(s, f"a{i}")) for i, (s, *_) in enumerate(raisers))))
    for s, _, p in raisers:
        v = w.point(s, "a")
        goal = w.terms.every([*w.in_box(flag.dims, w.reads(p.key, v)), w.terms.eq(w.read(p.call, v), v["e"])])
        judge.claim(Obligation("V202", f"{name}: {s.op.label} raises a declared element", tuple(w.domain(s, v)), goal, (w.instance("raises", s, v),)))
    for a, b in itertools.product(raisers, raisers):
        _counts_in_order(w, judge, flag, a, b)
    _all_raised(w, judge, flag, raisers)


def _counts_in_order(w: World, judge: Judge, flag: Flag, first: Raiser, second: Raiser) -> None:
    """Two raises of one counter: the earlier one has the smaller key, and comes first for certain."""
    t = w.terms
    (a, event, kept), (b, _, kept_b) = first, second
    u, v = w.point(a, "a"), w.point(b, "b")
    ka, kb = w.reads(kept.key, u), w.reads(kept_b.key, v)
    assume = [*w.domain(a, u), *w.domain(b, v), t.eq(u["e"], v["e"]), w.same_rank(u, v)]
    assume += [t.eq(w.read(kept.node, u), w.read(kept_b.node, v)), t.eq(w.read(kept.lane, u), w.read(kept_b.lane, v)), w.position(a, u, b, v)]
    shown = (w.instance("earlier", a, u), w.instance("later", b, v))
    about = f"{flag.name}: {a.op.label}, {b.op.label}"
    if flag.each:
        judge.claim(Obligation("V202", f"{about}: an element is raised once", tuple(assume), t.no(t.equal(ka, kb)), shown, may_be_empty=True))
        return
    on = len(flag.on)
    same_counter = t.equal(ka[:on], kb[:on])
    ordered = t.every((t.lex_less(tuple(ka[on:]), tuple(kb[on:])), w.program_order(a, u, b, v)))
    judge.claim(Obligation("V202", f"{about}: one counter counts in key order", (*assume, same_counter), ordered, shown, may_be_empty=True))
    if a.op.kind is OpKind.PUT and b.op.kind is OpKind.PUT:
        to = [(w.read(s.op.writes[0].node, x), w.read(s.op.writes[0].lane, x), w.read(s.op.context, x)) for s, x in ((a, u), (b, v))]
        judge.claim(Obligation("V202", f"{about}: puts to two peers, or over two contexts, may end in any order", (*assume, same_counter), t.equal(*to), shown, may_be_empty=True))


def _all_raised(w: World, judge: Judge, flag: Flag, raisers: list[Raiser]) -> None:
    """The first element of a counter is raised, and with an element also the next one, for every rank that the scope names.

    With V202 the count up to an element is then its row-major index in the box plus one.
    """
    t = w.terms
    me = w.rank("r")
    lane = t.var("to.lane")
    many = flag.scope in (Scope.NODE, Scope.LANES)
    rank = w.in_rank(me)
    if many:
        rank += [t.le(0, lane), t.lt(lane, w.lanes)] + ([t.no(t.eq(lane, me["j"]))] if flag.scope is Scope.LANES else [])

    def kept(s: Statement, p: Promise, v: Values, key: list[Int]) -> Bool:
        return t.every([*w.domain(s, v), t.equal(w.reads(p.key, v), key), t.eq(w.read(p.lane, v), lane) if many else True])

    start = _starts(w, flag)
    first = t.some(kept(s, p, v, start) for s, _, p in raisers for v in _guesses(w, s, p, start, me, lane))
    judge.claim(Obligation("V203", f"{flag.name}: its first element is raised", (*rank, *w.in_box(flag.dims, start)), first, may_be_empty=True))
    for d, dim in enumerate(flag.dims):
        for a, _, p in raisers:
            u = w.point(a, "a", n=me["n"], j=me["j"], e=me["e"])
            key = w.reads(p.key, u)
            nxt = [*key[:d], t.scale(key[d], 2) if dim.step is Step.DOUBLING else t.add(key[d], 1), *start[d + 1 :]]
            assume = [*rank, *w.domain(a, u), t.equal(key[d + 1 :], start[d + 1 :]), *w.in_box(flag.dims, nxt)]
            assume += [t.eq(w.read(p.lane, u), lane)] if many else []
            goal = t.some(kept(s, q, v, nxt) for s, _, q in raisers for v in _guesses(w, s, q, nxt, me, lane, a, u))
            judge.claim(Obligation(
                "V203", f"{flag.name}: with {a.op.label} the next {dim.name} is raised", tuple(assume), goal, (w.instance("raises", a, u),), may_be_empty=True))


def _starts(w: World, flag: Flag) -> list[Int]:
    """The first key of the box. The starts of its dimensions do not depend on each other."""
    at = Values({"M": w.nodes})
    return [w.read(d.lo, at) for d in flag.dims]


def _guesses(w: World, s: Statement, p: Promise, want: list[Int], me: Values, lane: Int, near: Statement | None = None, at: Values | None = None) -> Iterator[Values]:
    """Points of a family that may raise the wanted element: bare keys are given, other loops start, end, go on from `at`, or advance by one."""
    t = w.terms
    base = {"M": w.nodes, "n": me["n"], "j": me["j"], "e": me["e"]}
    keyed = {name: value for x, value in zip(p.key, want, strict=True) if (name := w.is_symbol(x))}
    seen = set()

    def emit(values: dict[str, Int]) -> Iterator[Values]:
        values = {**values, **{k: x for k, x in keyed.items() if k in values and k != "e"}}
        key = tuple(x.uid if hasattr(x := values[name], "uid") else ("int", x) for name in s.names)
        if key not in seen:
            seen.add(key)
            yield Values(values)

    def fill(values: dict[str, Int], begin: int, how: str) -> dict[str, Int]:
        out = dict(values)
        for loop in s.loops[begin:]:
            if loop.over_lanes:
                out[loop.name] = lane
            elif how == "same" and at is not None and loop.name in at:
                out[loop.name] = at[loop.name]
            elif loop.step is Step.DOUBLING:
                out[loop.name] = 1
            elif how in ("end", "end2"):
                out[loop.name] = t.sub(w.read(loop.hi, Values(out)), 1 if how == "end" else 2)
            else:
                out[loop.name] = w.read(loop.lo, Values(out))
            if loop.name in keyed:
                out[loop.name] = keyed[loop.name]
        return out

    for i in range(len(s.loops) + 1):
        prefix: dict[str, Int] = dict(base)
        if any(at is None or l.name not in at for l in s.loops[:i]):
            break
        for loop in s.loops[:i]:
            prefix[loop.name] = lane if loop.over_lanes else at[loop.name]
        if i == len(s.loops):
            yield from emit(prefix)
            break
        loop = s.loops[i]
        for how in ("start", "same", "end") if at is not None else ("start", "end", "end2"):
            yield from emit(fill(prefix, i, how))
            begun = {**prefix, loop.name: lane if loop.over_lanes else 1 if loop.step is Step.DOUBLING else w.read(loop.lo, Values(prefix))}
            yield from emit(fill(begun, i + 1, how))
            if at is not None and loop.name in at and not loop.over_lanes:
                here = at[loop.name]
                for moved in (t.scale(here, 2),) if loop.step is Step.DOUBLING else (t.add(here, 1), t.sub(here, 1)):
                    yield from emit(fill({**prefix, loop.name: moved}, i + 1, how))


def check_wait(w: World, judge: Judge, s: Statement, *, is_known: bool = False, among: str = "in every order of the calls of all collectives") -> None:
    """V203: the promise is made, and to the one that awaits it. V204: the op that keeps it is issued before.

    is_known: V203 is proved of the program that the wait comes from, and not asked. among: which orders of issue V204 speaks of.
    """
    t = w.terms
    promise = s.op.waits[0]
    flag = w.flags[promise.flag]
    v = w.point(s, "w")
    domain, key = w.domain(s, v), w.reads(promise.key, v)
    node, lane, call = w.read(promise.node, v), w.read(promise.lane, v), w.read(promise.call, v)
    shown = (w.instance("waits", s, v),)
    promised = t.every([*w.in_box(flag.dims, key), *w.legitimate(flag, v, node, lane)]) if w.raisers[flag.name] else False
    if not is_known:
        judge.claim(Obligation("V203", f"{flag.name}: {s.op.label} awaits a promise that somebody makes", tuple(domain), promised, shown))
    for a, _, kept in w.raisers[flag.name]:
        u = w.point(a, "a", n=node, j=lane, e=call)
        assume = [*domain, *w.domain(a, u), t.equal(w.reads(kept.key, u), key)]
        both = (w.instance("raises", a, u), *shown)
        if flag.scope is Scope.RAIL:
            goal = t.every((t.eq(w.read(kept.node, u), v["n"]), t.eq(w.read(kept.lane, u), v["j"])))
            if not is_known:
                what = f"{flag.name}: {a.op.label} raises it for the one that awaits it, {s.op.label}"
                judge.claim(Obligation("V203", what, tuple(assume), goal, both, may_be_empty=True))
        elif flag.scope is not Scope.SELF:
            assume.append(t.eq(w.read(kept.lane, u), v["j"]))
        # One order over all streams, all communicators and all collectives, the same on every rank: whatever serialises ops in the order of issue
        # (an aliased hardware queue, a communicator) adds edges that go up in it, and every wait's producer comes earlier, so there is no cycle.
        known, earlier = w.common_position(a, u, s, v)
        what = f"{flag.name}: {a.op.label} is issued before {s.op.label} waits, {among}"
        judge.claim(Obligation("V204", what, (*assume, *known), earlier, both, may_be_empty=True))


def check_races(w: World, judge: Judge, *, is_asked: Callable[[Statement, Statement], bool] = lambda a, b: True, depth: int = DEPTH) -> None:
    """V201, V205: of two conflicting accesses in different uses of a block (or a write and a read of one use) the first ends before the second starts.

    V302: so do two landings, which add to one block. is_asked: whether the order of two ops is not known already. depth: waits on a path.
    """
    before = Before(w)
    for name, accesses in w.accesses.items():
        if not any(is_asked(a, b) for (a, *_), (b, *_) in itertools.product(accesses, accesses)):
            continue
        heard = all(_is_heard(w, judge, s, c, accesses) for s, c, writes in accesses if writes and s.op.kind is not OpKind.FREE)
        for (a, ca, wa), (b, cb, wb) in itertools.product(accesses, accesses):
            if wa and wb and heard and a.op.kind is not OpKind.LAND:
                continue        # write, its reader, and the next write are ordered, so the two writes are
            if (wa or wb) and is_asked(a, b):
                _ordered(w, judge, before, name, (a, ca, wa), (b, cb, wb), depth)


def _is_heard(w: World, judge: Judge, s: Statement, c: Cell, accesses: list[tuple[Statement, Cell, bool]]) -> bool:
    """Every write has a reader of the same use: then write-write order follows from write-read and read-write order."""
    t = w.terms
    v = w.point(s, "a")
    ways: list[Bool] = []
    for b, cb, writes in accesses:
        if writes or not set(b.names) <= set(s.names):
            continue
        for lane in lanes_of((s, v)) if cb.lane is not ALL or c.lane is not ALL else [v["j"]]:
            call = solve(t, cb.call, "e", w.read(c.call, v), Values({}))
            if call is None:
                continue
            u = Values({"M": w.nodes, **{x: v[x] for x in b.names}, "n": w.read(c.node, v), "j": lane, "e": call})
            ways.append(t.every([*w.domain(b, u), *w.same_cell(c, v, cb, u), t.equal(w.use(s, c, v), w.use(b, cb, u))]))
    obligation = Obligation("V201", f"{c.buffer}: what {s.op.label} writes is read in the same use", tuple(w.domain(s, v)), t.some(ways))
    if not ways or not judge.holds(obligation):
        return False
    judge.accept(obligation)
    return True


def _ordered(w: World, judge: Judge, before: Before, buffer: str, first: tuple[Statement, Cell, bool], second: tuple[Statement, Cell, bool], most: int) -> None:
    t = w.terms
    (a, ca, wa), (b, cb, wb) = first, second
    u, v = w.point(a, "a"), w.point(b, "b")
    use_a, use_b = w.use(a, ca, u), w.use(b, cb, v)
    later = t.lex_less(use_a, use_b)
    if wa and not wb:
        later = t.some((later, t.equal(use_a, use_b)))
    assume = [*w.domain(a, u), *w.domain(b, v), *w.same_cell(ca, u, cb, v), later]
    kinds = {(True, False): "write, then read", (False, True): "read, then write", (True, True): "write, then write"}
    event = w.end_of(a, wa)
    code = "V205" if not wa and event is Event.DONE or b.op.kind is OpKind.FREE else "V201"
    if a.op.kind is b.op.kind is OpKind.LAND and wa and wb:
        code = "V302"       # both add to the block: their order is the order of the sum
    what = f"{buffer}: {a.op.label}, {b.op.label}: {kinds[wa, wb]}"
    shown = (w.instance("first", a, u, event), w.instance("then", b, v))
    if t.every(assume) is False or judge.never(assume):
        judge.empty(code, what, assume)
        return
    nearest = before.hops(a, event).get(b.op.stream, FAR)
    for depth in range(min(nearest, most), most + 1):
        before.side.clear()
        path = before.formula(a, u, event, b, v, depth)
        obligation = Obligation(code, what, (*assume, *before.side), path, shown, may_be_empty=True, residues=w.hard((a, u), (b, v)))
        if depth == most:
            narrow = _by_one_flag(before, judge, obligation, assume, (a, u, event, b, v, depth))
            if narrow is None:
                judge.claim(obligation)
            else:
                judge.accept(narrow)
        elif judge.holds(obligation):
            judge.accept(obligation)
            return


def _by_one_flag(
    before: Before, judge: Judge, whole: Obligation, assume: list[Bool], path: tuple[Statement, Values, Event, Statement, Values, int],
) -> Obligation | None:
    """The claim with the paths alone whose last wait is for one flag, where it is proved so: it gives the whole, and where there are many paths takes a fraction of the steps."""
    a, _, event, b, _, depth = path
    flags = before.flags(a, event, b, depth)
    if not whole.residues or len(flags) < 2:
        return None
    for flag in flags:
        before.side.clear()
        goal = before.formula(*path, last=flag)
        narrow = replace(whole, assume=(*assume, *before.side), goal=goal)
        if goal is not False and judge.holds(narrow):
            return narrow
    return None
