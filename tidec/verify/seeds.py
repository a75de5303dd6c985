"""Accumulation into an output: what the caller accumulates into is taken up by the first write of a call, and by no other."""
from __future__ import annotations

import itertools

from tidec.schedule.program import Cell, Kind, OpKind, Statement, Step
from tidec.verify.families import World
from tidec.verify.judge import Judge
from tidec.verify.obligation import Obligation
from tidec.verify.terms import Bool, Int, Values

Access = tuple[Statement, Cell]


def check_seeds(w: World, judge: Judge) -> None:
    """V107 a landing adds to what this call began. V104 no landing begins anew what this call has landed. V105 a sum takes up the output, and nothing else."""
    for name, accesses in w.accesses.items():
        is_output = w.buffers[name].kind is Kind.OUTPUT
        landings = [(s, c) for s, c, writes in accesses if writes and s.op.kind is OpKind.LAND]
        for s, c, writes in accesses:
            if writes and s.op.kind is OpKind.SUM:
                v = w.point(s, "x")
                begins = w.read(s.op.seed, v)
                goal = begins if is_output else w.terms.no(begins)
                judge.claim(Obligation("V105", f"{name}: {s.op.label} {'starts from' if is_output else 'does not add to'} what is there", tuple(w.domain(s, v)), goal, (w.instance("", s, v),)))
        for access in landings:
            _begun(w, judge, name, access, landings)
        for first, second in itertools.product(landings, landings):
            _not_anew(w, judge, name, first, second)


def _begun(w: World, judge: Judge, name: str, access: Access, landings: list[Access]) -> None:
    """A landing that does not begin its blocks comes after one of the call that does: the one of the same or of the first trips of its loops."""
    t = w.terms
    s, c = access
    v = w.point(s, "x")
    ways: list[Bool] = []
    for a, ca in landings:
        for cut in range(len(a.loops) + 1):
            at: dict[str, Int] = {"M": w.nodes, "n": v["n"], "j": v["j"], "e": v["e"]}
            for i, loop in enumerate(a.loops):
                at[loop.name] = v[loop.name] if i < cut and loop.name in v else 1 if loop.step is Step.DOUBLING else w.read(loop.lo, Values(at))
            u = Values(at)
            ways.append(t.every([*w.domain(a, u), *w.same_cell(ca, u, c, v), w.read(a.op.seed, u), w.program_order(a, u, s, v)]))
    assume = (*w.domain(s, v), t.no(w.read(s.op.seed, v)))
    judge.claim(Obligation("V107", f"{name}: {s.op.label} adds to what this call began", assume, t.some(ways), (w.instance("adds", s, v),), may_be_empty=True))


def _not_anew(w: World, judge: Judge, name: str, first: Access, second: Access) -> None:
    t = w.terms
    (a, ca), (b, cb) = first, second
    u, v = w.point(a, "a"), w.point(b, "b")
    assume = (*w.domain(a, u), *w.domain(b, v), *w.same_cell(ca, u, cb, v), t.eq(w.read(ca.call, u), w.read(cb.call, v)), w.position(a, u, b, v))
    shown = (w.instance("first", a, u), w.instance("then", b, v))
    judge.claim(Obligation("V104", f"{name}: {b.op.label} does not begin anew what {a.op.label} landed", assume, t.no(w.read(b.op.seed, v)), shown, may_be_empty=True))
