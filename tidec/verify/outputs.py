"""What the caller gets: every output block is written, on its own rank, and takes up every contribution once."""
from __future__ import annotations

import itertools

from tidec.schedule.program import ALL, Cell, Every, Kind, OpKind, Statement, Step
from tidec.verify.families import World, solve
from tidec.verify.judge import Judge
from tidec.verify.obligation import Obligation
from tidec.verify.terms import Bool, Int, Values

Access = tuple[Statement, Cell]
ADDING = (OpKind.LAND, OpKind.SUM)


def check_outputs(w: World, judge: Judge) -> None:
    """V103 sums and landings write the own rank's output. V106 every block of it is written; what lands is landed on every lane, and once."""
    for name, accesses in w.accesses.items():
        buffer = w.buffers[name]
        if buffer.kind is Kind.OUTPUT:
            writers = [(s, c) for s, c, writes in accesses if writes and s.op.kind in ADDING]
            for s, c in writers:
                v = w.point(s, "x")
                mine = w.terms.eq(w.read(c.lane, v), v["j"]) if not isinstance(c.lane, Every) else False
                judge.claim(Obligation("V103", f"{name}: {s.op.label} writes its own rank's", tuple(w.domain(s, v)), mine, (w.instance("", s, v),)))
            if writers:
                _whole(w, judge, name, writers)
        if buffer.rests_at_zero:
            readers = [(s, c) for s, c, writes in accesses if not writes]
            for s, c, writes in accesses:
                if writes and s.op.kind is not OpKind.ZERO:
                    _landed(w, judge, name, (s, c), readers)
            for a, b in itertools.combinations_with_replacement(readers, 2):
                _landed_once(w, judge, name, a, b)


def _whole(w: World, judge: Judge, name: str, writers: list[Access]) -> None:
    """Every block of the output is written in every call, by the own rank."""
    t = w.terms
    me = w.rank("r")
    dims = w.buffers[name].dims
    key: list[Int] = [t.var(f"block.{d.name}") for d in dims]
    ways: list[Bool] = []
    for s, c in writers:
        at: dict[str, Int] = {"M": w.nodes, "n": me["n"], "j": me["j"], "e": me["e"]}
        for x, k in zip(c.key, key, strict=True):
            if symbol := w.is_symbol(x):
                at.setdefault(symbol, k)
        for loop in s.loops:
            if loop.name not in at:
                at[loop.name] = 1 if loop.step is Step.DOUBLING else w.read(loop.lo, Values(at))
        v = Values(at)
        same = [t.eq(w.read(x, v), k) for x, k in zip(c.key, key, strict=True) if not isinstance(x, Every)]
        ways.append(t.every([*w.domain(s, v), *same]))
    judge.claim(Obligation("V106", f"{name}: every block is written", (*w.in_rank(me), *w.in_box(dims, key)), t.some(ways)))


def _landed(w: World, judge: Judge, name: str, access: Access, readers: list[Access]) -> None:
    """What is written is landed, in the same use, by every lane of the node."""
    t = w.terms
    s, c = access
    v = w.point(s, "a")
    lane = t.var("by.lane")
    ways: list[Bool] = []
    for b, cb in readers:
        call = solve(t, cb.call, "e", w.read(c.call, v), Values({}))
        if b.op.kind is OpKind.LAND and set(b.names) <= set(s.names) and call is not None and cb.lane is ALL:
            u = Values({"M": w.nodes, **{x: v[x] for x in b.names}, "n": w.read(c.node, v), "j": lane, "e": call})
            ways.append(t.every([*w.domain(b, u), *w.same_cell(c, v, cb, u), t.equal(w.use(s, c, v), w.use(b, cb, u))]))
    assume = (*w.domain(s, v), t.le(0, lane), t.lt(lane, w.lanes))
    judge.claim(Obligation("V106", f"{name}: every lane lands what {s.op.label} writes", assume, t.some(ways), (w.instance("writes", s, v),)))


def _landed_once(w: World, judge: Judge, name: str, first: Access, second: Access) -> None:
    """A rank lands a block of one use once."""
    t = w.terms
    (a, ca), (b, cb) = first, second
    u, v = w.point(a, "a"), w.point(b, "b")
    assume = (*w.domain(a, u), *w.domain(b, v), w.same_rank(u, v), *w.same_cell(ca, u, cb, v), t.equal(w.use(a, ca, u), w.use(b, cb, v)))
    same = w.same_point(a, u, v) if a is b else False
    shown = (w.instance("first", a, u), w.instance("then", b, v))
    judge.claim(Obligation("V106", f"{name}: {a.op.label}, {b.op.label}: landed once", assume, same, shown, may_be_empty=True))
