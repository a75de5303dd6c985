"""Every claim about places, for every M: indices in range, one writer a block, the right contents, every contributor once, nothing stale."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from tidec.index import Node, Op as IndexOp, residues
from tidec.schedule.program import ALL, OTHERS, Cell, Every, Kind, OpKind, Promise, Statement
from tidec.verify.before import Before, lanes_of
from tidec.verify.families import World
from tidec.verify.judge import Judge
from tidec.verify.obligation import Obligation, Verdict
from tidec.verify.terms import Bool, Int, Term, Values


Asked = Callable[[Statement], bool]


def check_ranges(w: World, judge: Judge, *, is_asked: Asked = lambda s: True) -> None:
    """V101 wrap and back are used in their range. V102 every access is in bounds. V103 a put stays on its rail, everything else in its node."""
    t = w.terms
    for s in filter(is_asked, w.statements):
        v = w.point(s, "x")
        domain = tuple(w.domain(s, v))
        shown = (w.instance("", s, v),)
        if not judge.may_idle:
            judge.claim(Obligation("V902", f"{s.op.label} runs somewhere", (), judge.possible(domain) is Verdict.PROVED, shown))
        expressions: list[object] = [x for l in s.loops for x in (l.lo, l.hi)]
        bounds: list[Bool] = []
        for cell in (*s.op.reads, *s.op.writes):
            expressions += [*cell.key, cell.node, cell.lane, cell.call]
            node = w.read(cell.node, v)
            bounds += [t.le(0, node), t.lt(node, w.nodes)]
            if not isinstance(cell.lane, Every):
                lane = w.read(cell.lane, v)
                bounds += [t.le(0, lane), t.lt(lane, w.lanes)]
            for x, dim in zip(cell.key, w.buffers[cell.buffer].dims, strict=True):
                if not isinstance(x, Every):
                    at = w.read(x, v)
                    bounds += [t.le(w.read(dim.lo, v), at), t.lt(at, w.read(dim.hi, v))]
        reach: list[Bool] = []
        for cell, writes in [*((c, False) for c in s.op.reads), *((c, True) for c in s.op.writes)]:
            far = s.op.kind is OpKind.PUT and writes
            here = t.eq(w.read(cell.node, v), v["n"])
            on_rail = False if isinstance(cell.lane, Every) else t.eq(w.read(cell.lane, v), v["j"])
            reach += [t.no(here), on_rail] if far else [here, on_rail] if s.op.kind is OpKind.PUT else [here]
        for r in s.op.raises:
            expressions += [*r.promise.key, r.promise.node, r.promise.lane]
            reach += w.legitimate(w.flags[r.promise.flag], v, w.read(r.promise.node, v), w.read(r.promise.lane, v))
        for p in s.op.waits:
            expressions += [*p.key, p.node, p.lane, p.call]
            node, lane = w.read(p.node, v), w.read(p.lane, v)
            bounds += [t.le(0, node), t.lt(node, w.nodes), t.le(0, lane), t.lt(lane, w.lanes)]
        wrapped = [_in_range(w, x, path, v) for e in expressions for x, path in residues(e)]
        for code, what, goals in (("V101", "wrap and back in range", wrapped), ("V102", "in bounds", bounds), ("V103", "within reach", reach)):
            if goals:
                judge.claim(Obligation(code, f"{s.op.label}: {what}", domain, t.every(goals), shown))
        _check_context(w, judge, s, v)


def _check_context(w: World, judge: Judge, s: Statement, v: Values) -> None:
    """V102: a put goes over one of the RMA contexts 0..stripes-1. Nothing is claimed of a program that has and names only the first."""
    t, stripes = w.terms, w.program.stripes
    if s.op.kind is OpKind.PUT and (stripes > 1 or isinstance(s.op.context, Node) or s.op.context != 0):
        context = w.read(s.op.context, v)
        goal = t.every((t.le(0, context), t.lt(context, stripes)))
        judge.claim(Obligation("V102", f"{s.op.label}: its RMA context is in 0..{stripes - 1}", tuple(w.domain(s, v)), goal, (w.instance("", s, v),)))


def _in_range(w: World, x: Node, path: tuple[object, ...], v: Values) -> Bool:
    t = w.terms
    value, m = w.read(x.args[0], v), w.read(x.args[1], v)
    low, high = (0, t.scale(m, 2)) if x.op is IndexOp.WRAP else (t.scale(m, -1), m)
    return t.implies(t.every(w.reads(path, v)), t.every((t.le(low, value), t.lt(value, high))))


def check_exclusive(w: World, judge: Judge) -> None:
    """V104: two writers never reach one block in one use of it."""
    t = w.terms
    for name, accesses in w.accesses.items():
        writers = [(s, c) for s, c, writes in accesses if writes]
        for (a, ca), (b, cb) in itertools.combinations_with_replacement(writers, 2):
            u, v = w.point(a, "a"), w.point(b, "b")
            assume = (*w.domain(a, u), *w.domain(b, v), *w.same_cell(ca, u, cb, v), t.equal(w.use(a, ca, u), w.use(b, cb, v)))
            same = w.same_point(a, u, v) if a is b else False
            judge.claim(Obligation("V104", f"{name}: {a.op.label}, {b.op.label}", assume, same, (w.instance("first", a, u), w.instance("then", b, v)), may_be_empty=True,
                                   residues=w.hard((a, u), (b, v))))


def check_contents(w: World, judge: Judge, *, is_asked: Asked = lambda s: True) -> None:
    """V105: what an op moves is what its destination should hold, of the same call; a sum has every lane once."""
    t = w.terms
    for s in filter(is_asked, w.statements):
        if s.op.kind not in (OpKind.COPY, OpKind.CAST, OpKind.PUT, OpKind.SUM, OpKind.LAND):
            continue
        v = w.point(s, "x")
        wild: dict[str, Term] = {}
        into = s.op.writes[0]
        assume, goal = w.domain(s, v), []
        held = _label(w, into, v, wild)
        for cell in s.op.reads:
            if w.lanes == 1 and any(k is OTHERS for k in cell.key):
                continue        # one lane has no others: nothing is read there
            goal += [t.eq(x, y) for x, y in zip(_label(w, cell, v, wild), held, strict=True)] + [t.eq(w.read(cell.call, v), w.read(into.call, v))]
            goal += _source(w, s, cell, into, v, wild)
        for name, x in wild.items():
            sizes = [d for c in (*s.op.reads, into) for d, k in zip(w.buffers[c.buffer].dims, c.key) if d.name == name and isinstance(k, Every)]
            assume += [t.le(0, x), t.lt(x, w.lanes)] if name == "lane of the node" else [t.le(w.read(sizes[0].lo, v), x), t.lt(x, w.read(sizes[0].hi, v))]
            if any(k is OTHERS and d.name == name for c in s.op.reads for d, k in zip(w.buffers[c.buffer].dims, c.key)):
                assume.append(t.no(t.eq(x, v["j"])))
        judge.claim(Obligation("V105", f"{s.op.label} into {into.buffer}", tuple(assume), t.every(goal), (w.instance("", s, v),)))


def _owner(w: World, cell: Cell, v: Values, wild: dict[str, Term]) -> Values:
    """The symbols of a buffer's own words: its owner's rank, the call, the block's indices and the use."""
    buffer = w.buffers[cell.buffer]
    lane = wild.setdefault("lane of the node", w.terms.var("any.lane")) if isinstance(cell.lane, Every) else w.read(cell.lane, v)
    at: dict[str, Int] = {"M": w.nodes, "n": w.read(cell.node, v), "j": lane, "e": w.read(cell.call, v)}
    for dim, x in zip(buffer.dims, cell.key, strict=True):
        at["#" + dim.name] = wild.setdefault(dim.name, w.terms.var(f"any.{dim.name}")) if isinstance(x, Every) else w.read(x, v)
    at |= {"@" + name: w.read(x, v) for name, x in zip(buffer.per, cell.use, strict=True)}
    return Values(at)


def _label(w: World, cell: Cell, v: Values, wild: dict[str, Term]) -> list[Int]:
    return w.reads(w.buffers[cell.buffer].holds, _owner(w, cell, v, wild))


def _source(w: World, s: Statement, cell: Cell, into: Cell, v: Values, wild: dict[str, Term]) -> list[Bool]:
    """Whose contributions move: the same ones, except that a sum turns every lane's into the whole node's."""
    t = w.terms
    theirs, ours = w.buffers[cell.buffer].source, w.buffers[into.buffer].source
    if not theirs or not ours:
        return []
    a, b = _owner(w, cell, v, wild), _owner(w, into, v, wild)
    if s.op.kind is not OpKind.SUM:
        return [False if isinstance(x, Every) is not isinstance(y, Every) else True if isinstance(x, Every) else t.eq(w.read(x, a), w.read(y, b)) for x, y in zip(theirs, ours)]
    whole = [(d.name, k) for d, k in zip(w.buffers[cell.buffer].dims, cell.key) if isinstance(k, Every)]
    if ours[1] is not ALL or isinstance(theirs[1], Every) or len(whole) > 1 or any(k is not OTHERS for _, k in whole):
        return [False]
    lane = wild[whole[0][0]] if whole else v["j"]
    return [t.eq(w.read(theirs[0], a), w.read(ours[0], b)), t.eq(w.read(theirs[1], a), lane)]


def check_written(w: World, judge: Judge, *, is_asked: Callable[[Statement, str], bool] = lambda s, buffer: True) -> None:
    """V107: a block that is read was written in the same use of it. is_asked: whether that is not known already of an op and a buffer."""
    t = w.terms
    before = Before(w)
    for name, accesses in w.accesses.items():
        buffer = w.buffers[name]
        if buffer.kind is Kind.INPUT or buffer.rests_at_zero:
            continue
        writers = [(s, c) for s, c, writes in accesses if writes]
        for b, cell, writes in accesses:
            if writes or not is_asked(b, name):
                continue
            v = w.point(b, "b")
            assume = w.domain(b, v)
            free: list[Int] = []
            key: list[Int] = []
            for x, dim in zip(cell.key, buffer.dims, strict=True):
                if isinstance(x, Every):
                    k = t.var(f"cell.{dim.name}")
                    assume += [t.le(w.read(dim.lo, v), k), t.lt(k, w.read(dim.hi, v))] + ([t.no(t.eq(k, v["j"]))] if x is OTHERS else [])
                    free.append(k)
                else:
                    k = w.read(x, v)
                key.append(k)
            use = (w.read(cell.call, v), *w.reads(cell.use, v))

            def writes_it(s: Statement, c: Cell, u: Values) -> Bool:
                same = [t.no(t.eq(k, u["j"])) if x is OTHERS else True if x is ALL else t.eq(w.read(x, u), k) for x, k in zip(c.key, key, strict=True)]
                same.append(t.eq(w.read(c.node, u), w.read(cell.node, v)))
                same += [] if isinstance(c.lane, Every) else [t.eq(w.read(c.lane, u), w.read(cell.lane, v))]
                return t.every([*w.domain(s, u), *same, t.equal((w.read(c.call, u), *w.reads(c.use, u)), use)])

            what = f"{name}: what {b.op.label} reads was written"
            shown = (w.instance("reads", b, v),)
            if w.lanes == 1 and any(x is OTHERS for x in cell.key):
                judge.empty("V107", what, (False,))
                continue
            if buffer.found:
                at = Values({"M": w.nodes, "n": w.read(cell.node, v), "j": w.read(cell.lane, v), "e": use[0], **{f"#{d.name}": k for d, k in zip(buffer.dims, key)}})
                named = {x: w.read(y, at) for x, y in buffer.found}
                ways = [writes_it(s, c, Values({"M": w.nodes, "e": use[0], **named})) for s, c in writers if set(s.names) <= set(named) | {"e"}]
                judge.claim(Obligation("V107", what, tuple(assume), t.some(ways), shown))
                continue
            pool = [*lanes_of((b, v)), *free]
            for hops in (0, 1, 2):
                before.side.clear()
                ways = [t.every((cond, writes_it(s, c, u))) for p, pv, cond in _known_before(w, before, b, v, pool, hops)
                        for s, c in writers for u in _points_near(before, s, p, pv, b, v, pool) for u in (_with_free(w, c, u, cell, key),)]
                obligation = Obligation("V107", what, (*assume, *before.side), t.some(ways), shown)
                if hops == 2 or judge.holds(obligation):
                    judge.claim(obligation)
                    break


def _with_free(w: World, c: Cell, u: Values, read: Cell, key: list[Int]) -> Values:
    """The point of a writer whose loops give the indices that the reader leaves free."""
    named = {name: k for x, y, k in zip(c.key, read.key, key, strict=True) if isinstance(y, Every) and (name := w.is_symbol(x)) not in ("", "n", "j", "e", "M")}
    return u.but(**named) if named else u


def _points_near(before: Before, s: Statement, p: Statement, at: Values, b: Statement, v: Values, pool: list[Int]) -> Iterator[Values]:
    """Points of a writer that go with a known point of its stream: that one, or those of the iterations around it."""
    if s is p:
        yield at
    elif s.op.stream == p.op.stream:
        yield from before.instances(replace(s, op=replace(s.op, waits=(_NOTHING,))), p, at, b, v, None, pool)


_NOTHING = Promise("", (), 0, 0, 0)     # the statement is looked up the way a wait is, by its loops alone


def _known_before(w: World, before: Before, b: Statement, v: Values, pool: list[Int], hops: int) -> list[tuple[Statement, Values, Bool]]:
    """Points that precede b: b itself, and the sources of the waits before it, and those of the waits before them."""
    t = w.terms
    points: list[tuple[Statement, Values, Bool]] = [(b, v, True)]
    front = points
    for _ in range(hops):
        new = []
        for p, pv, cond in front:
            for wait in w.waits.get(p.op.stream, ()):
                for x in before.instances(wait, p, pv, b, v, None, pool):
                    stands = t.every([cond, w.program_order(wait, x, p, pv), *w.domain(wait, x)])
                    if stands is not False:
                        before.source(wait, x)
                        before.rely_on(wait, x)
                        new += [(s, y, t.every((stands, is_it))) for s, _, y, is_it in before.source(wait, x) if is_it is not False]
        points, front = points + new, new if len(new) < 60 else []
    return points
