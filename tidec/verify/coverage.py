"""Buffers that many write and one reads as a whole: every contributor lands, once, and what nobody wrote is zero."""
from __future__ import annotations

import itertools

from tidec.index import Node, Op as IndexOp
from tidec.schedule.program import OTHERS, Buffer, Cell, Cover, Every, OpKind, Statement
from tidec.verify.families import World, solve
from tidec.verify.judge import Judge
from tidec.verify.obligation import Obligation
from tidec.verify.terms import Bool, Form, Int, Term, Terms, Values

Access = tuple[Statement, Cell]


def check_covers(w: World, judge: Judge) -> None:
    """V106: every ask of a cover is served by a write, and a node never writes a block of one part twice."""
    for cover in w.program.covers:
        writers = [(s, c) for s, c, writes in w.accesses[cover.buffer] if writes and s.op.kind is not OpKind.ZERO]
        _served(w, judge, cover, writers)
        for a, b in itertools.combinations_with_replacement(writers, 2):
            _once(w, judge, cover, a, b)


def _served(w: World, judge: Judge, cover: Cover, writers: list[Access]) -> None:
    t = w.terms
    ask = {d.name: t.var(f"ask.{d.name}") for d in cover.ask}
    assume = tuple(w.in_box(cover.ask, ask.values()))
    at = Values({"M": w.nodes, **{f"#{name}": x for name, x in ask.items()}})
    found = {name: w.read(x, at) for name, x in cover.found}
    cell = (w.read(cover.node, at), *w.reads(cover.key, at))
    lane = w.read(cover.lane, at)
    ways: list[Bool] = []
    for s, c in writers:
        if set(s.names) <= set(found) | {"e"}:
            u = Values({"M": w.nodes, "e": t.var("e"), **found})
            ways.append(t.every([*w.domain(s, u), *_is_cell(w, c, u, (cell[0], lane), list(cell[1:]))]))
    judge.claim(Obligation("V106", f"{cover.buffer}: every contributor lands", assume, t.some(ways)))


def _once(w: World, judge: Judge, cover: Cover, first: Access, second: Access) -> None:
    """Two writes of one node for one target, block, part and call are one write, whatever wave they are in."""
    t = w.terms
    (a, ca), (b, cb) = first, second
    u, v = w.point(a, "a"), w.point(b, "b")
    holds = w.buffers[cover.buffer].holds
    (key_a, in_a), (key_b, in_b) = (block_of(w, c, x, tag) for c, x, tag in ((ca, u, "a"), (cb, v, "b")))
    theirs = [w.reads(holds, _owner(w, c, x, key)) for c, x, key in ((ca, u, key_a), (cb, v, key_b))]
    assume = [*w.domain(a, u), *w.domain(b, v), *in_a, *in_b, t.eq(u["n"], v["n"]), t.equal(*theirs), t.eq(w.read(ca.call, u), w.read(cb.call, v))]
    same = w.same_point(a, u, v) if a is b else False
    shown = (w.instance("first", a, u), w.instance("then", b, v))
    judge.claim(Obligation("V106", f"{cover.buffer}: no contributor lands twice: {a.op.label}, {b.op.label}", tuple(assume), same, shown, may_be_empty=True))


def _owner(w: World, cell: Cell, v: Values, key: list[Int]) -> Values:
    """The symbols of the buffer's own words, for one block of those that the access names."""
    buffer = w.buffers[cell.buffer]
    at: dict[str, Int] = {"M": w.nodes, "n": w.read(cell.node, v), "j": w.read(cell.lane, v), "e": w.read(cell.call, v)}
    at |= {"#" + d.name: x for d, x in zip(buffer.dims, key, strict=True)}
    return Values(at | {"@" + name: w.read(x, v) for name, x in zip(buffer.per, cell.use, strict=True)})


def block_of(w: World, cell: Cell, v: Values, tag: str) -> tuple[list[Int], list[Bool]]:
    """Any one block of those that an access names: its key, and the bounds of what is unknown in it."""
    t = w.terms
    key: list[Int] = []
    bounds: list[Bool] = []
    for x, dim in zip(cell.key, w.buffers[cell.buffer].dims, strict=True):
        if isinstance(x, Every):
            key.append(t.var(f"{tag}.any.{dim.name}"))
            bounds += [t.le(w.read(dim.lo, v), key[-1]), t.lt(key[-1], w.read(dim.hi, v))] + ([t.no(t.eq(key[-1], v["j"]))] if x is OTHERS else [])
        else:
            key.append(w.read(x, v))
    return key, bounds


def check_stale(w: World, judge: Judge) -> None:
    """V107 for a buffer that rests at zero: what the use before wrote and this one does not is cleared first."""
    for name, accesses in w.accesses.items():
        buffer = w.buffers[name]
        if not buffer.rests_at_zero:
            continue
        writers = [(s, c) for s, c, writes in accesses if writes]
        for s, c, writes in accesses:
            if not writes:
                _cleared(w, judge, buffer, (s, c), writers)
        for access in writers:
            if access[0].op.kind is OpKind.ZERO:
                _skipped(w, judge, buffer, access, writers)


def _cleared(w: World, judge: Judge, buffer: Buffer, reader: Access, writers: list[Access]) -> None:
    t = w.terms
    b, cb = reader
    v = w.point(b, "b")
    use = (w.read(cb.call, v), *w.reads(cb.use, v))
    names = ("e", *buffer.per)
    earlier = w.reads(buffer.before, Values({"M": w.nodes, **{f"@{x}": y for x, y in zip(names, use, strict=True)}}))
    v2 = v.but(**dict(zip(names, earlier, strict=True)))
    prev = (w.read(cb.call, v2), *w.reads(cb.use, v2))
    same_block = [t.eq(w.read(x, v2), w.read(x, v)) for x in cb.key if not isinstance(x, Every)]
    domain = w.domain(b, v)
    judge.claim(Obligation(
        "V107", f"{buffer.name}: {b.op.label}: the use before is one, of the same block", tuple(domain),
        t.every([*w.domain(b, v2), t.lex_less(prev, use), *same_block]), (w.instance("reads", b, v),)))
    for a, ca in writers:
        if a.op.kind is OpKind.ZERO:
            continue
        u = w.point(a, "a")
        use_a = (w.read(ca.call, u), *w.reads(ca.use, u))
        assume = [*domain, *w.domain(a, u), *w.same_cell(ca, u, cb, v)]
        shown = (w.instance("wrote", a, u), w.instance("reads", b, v))
        judge.claim(Obligation(
            "V107", f"{buffer.name}: {a.op.label}: no use lies between", (*assume, t.lex_less(prev, use_a), t.lex_less(use_a, use)), False, shown, may_be_empty=True))
        assume.append(t.equal(use_a, prev))
        target = (w.read(ca.node, u), w.read(ca.lane, u))
        key, bounds = block_of(w, ca, u, "a")
        assume += bounds
        what = f"{buffer.name}: what {a.op.label} left is cleared"
        clears = [(s, c, x, side) for s, c in writers if s.op.kind is OpKind.ZERO for x, side in _points_at(w, s, c, dict(zip(names, use)), target, key)]
        if not clears:
            written, side = _written(w, writers, dict(zip(names, use)), target, key)
            judge.claim(Obligation("V107", what, (*assume, *side), written, shown))
        for s, c, x, side in clears:
            yes, _ = _guards(s)
            goals = [*w.domain(s, x, conds=False), *_is_cell(w, c, x, target, key), *w.reads(yes, x)]
            for goal in goals:
                judge.claim(Obligation("V107", f"{what} by {s.op.label}", (*assume, *side), goal, shown))


def _skipped(w: World, judge: Judge, buffer: Buffer, access: Access, writers: list[Access]) -> None:
    """Where a clearing op is told not to run, another writer of the use runs; case by case in the lane, since residues of constants are easy."""
    t = w.terms
    s, c = access
    _, skipped_where = _guards(s)
    lane_loop = [l.name for l in s.loops if l.over_lanes][:1]
    for d in range(w.lanes if lane_loop else 1):
        x = w.point(s, "z", **{name: d for name in lane_loop})
        use = {"e": w.read(c.call, x), **{name: w.read(y, x) for name, y in zip(buffer.per, c.use, strict=True)}}
        target = (w.read(c.node, x), w.read(c.lane, x))
        key, bounds = block_of(w, c, x, "z")
        written, side = _written(w, writers, use, target, key)
        for case in w.reads(skipped_where, x):
            judge.claim(Obligation(
                "V107", f"{buffer.name}: {s.op.label} is skipped only where something is written, diagonal {d}",
                (*w.domain(s, x, conds=False), case, *bounds, *side), written, (w.instance("skipped", s, x),), may_be_empty=True,
                residues=tuple((x[l.name], w.lanes) for l in s.loops if isinstance(x[l.name], Term) and not isinstance(l.hi, int))))


def _guards(s: Statement) -> tuple[list[object], list[object]]:
    """The conditions of a clearing op: those that must hold, and the alternatives that stop it."""
    yes: list[object] = []
    stops: list[object] = []
    todo: list[object] = list(s.conds)
    while todo:
        cond = todo.pop(0)
        if isinstance(cond, Node) and cond.op is IndexOp.AND:
            todo = [*cond.args, *todo]
        elif isinstance(cond, Node) and cond.op is IndexOp.NOT and not (isinstance(cond.args[0], Node) and cond.args[0].op is IndexOp.EQ):
            inner = cond.args[0]
            stops += inner.args if inner.op is IndexOp.OR else [inner]
        else:
            yes.append(cond)
    return yes, stops


def _is_cell(w: World, c: Cell, x: Values, target: tuple[Int, Int], key: list[Int]) -> list[Bool]:
    t = w.terms
    return [t.eq(w.read(y, x), k) for y, k in zip(c.key, key, strict=True) if not isinstance(y, Every)] + [t.eq(w.read(c.node, x), target[0]), t.eq(w.read(c.lane, x), target[1])]


def _written(w: World, writers: list[Access], use: dict[str, Int], target: tuple[Int, Int], key: list[Int]) -> tuple[Bool, list[Bool]]:
    """Some writer of that use reaches the block; and what is known of the unknowns that name it."""
    t = w.terms
    ways: list[Bool] = []
    sides: list[Bool] = []
    for s, c in writers:
        if s.op.kind is not OpKind.ZERO:
            for x, side in _points_at(w, s, c, use, target, key):
                ways.append(t.every([*w.domain(s, x), *_is_cell(w, c, x, target, key)]))
                sides += side
    return t.some(ways), sides


def _points_at(w: World, s: Statement, c: Cell, use: dict[str, Int], target: tuple[Int, Int], key: list[Int]) -> list[tuple[Values, list[Bool]]]:
    """Points of a writer that may reach a block in a use: the use's indices given, lanes solved, residues named, short loops unrolled."""
    t = w.terms
    points: list[tuple[dict[str, Int], list[Bool]]] = [({"M": w.nodes, "j": target[1], **{x: y for x, y in use.items() if x in s.names}}, [])]
    for loop in s.loops:
        grown: list[tuple[dict[str, Int], list[Bool]]] = []
        for at, side in points:
            if loop.name in at:
                grown.append((at, side))
                continue
            here = Values({**at, "n": target[0]})
            solved = [(x, k) for x, k in zip(c.key, key, strict=True)
                      if not isinstance(x, Every) and solve(t, x, loop.name, k, here) is not None]
            if loop.over_lanes:
                grown += [({**at, loop.name: solve(t, x, loop.name, k, here)}, side) for x, k in solved[:1]]
                continue
            named = next((k for x, k in zip(c.key, key, strict=True) if w.is_symbol(x) == loop.name), None)
            if named is not None:
                grown.append(({**at, loop.name: named}, side))
                continue
            low = w.read(loop.lo, Values(at))
            residue = next(((x, k) for x, k in solved if isinstance(x, Node) and x.op is IndexOp.MOD), None)
            if residue is not None:
                x, k = residue
                m = x.args[1]
                index, quotient = t.skolem(f"{s.op.label}.{loop.name}"), t.skolem(f"{s.op.label}.turn")
                start = solve(t, x.args[0], loop.name, _inside(t, k, m), here)
                # The one value in [low, low + m) with this residue.
                grown.append(({**at, loop.name: index}, [*side, t.le(low, index), t.lt(index, t.add(low, m)), t.eq(index, t.add(start, quotient, m))]))
                continue
            grown += [({**at, loop.name: t.add(low, i)}, side) for i in range(loop.at_most)]
        points = grown
    out = []
    for at, side in points:
        node = solve(t, c.node, "n", target[0], Values(at))
        if node is not None:
            out.append((Values({**at, "n": node}), side))
    return out


def _inside(t: Terms, value: Int, m: int) -> Int:
    """What a residue by m is the residue of."""
    return value.args[0] if isinstance(value, Term) and value.form is Form.MOD and value.args[1] == m else value


