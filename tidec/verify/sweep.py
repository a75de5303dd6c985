"""The paper's offline sweep (appendix D): which (M, W) collide, counted with the premise that plans are made under.

L lanes, M nodes, W wave width, c contributor (c = M is the own node, which counts as 0 in the rotation).
"""
from __future__ import annotations

import time
from dataclasses import dataclass

from tidec.index import Truth, evaluate
from tidec.schedule.catalog import traced
from tidec.verify import solver
from tidec.verify.obligation import Obligation, Verdict
from tidec.verify.terms import Bool, Int, Terms, Values

LANES = 8
FIRST_M, LAST_M = 2, 1024
COMBINATIONS = 64        # of (k, memory-efficient) at every (M, W); neither touches placement


@dataclass(frozen=True, slots=True)
class Sweep:
    """accepted, rejected: base plans (M, W, k, memory-efficient). colliding: for W = 1..L how many M collide. verdict: of the premise's own proof."""

    accepted: int
    rejected: int
    colliding: tuple[int, ...]
    verdict: Verdict
    disagreements: int
    seconds: float


def premise(lanes: int, width: int) -> Truth:
    """The premise on M under which the reduce-scatter of that width is planned: the schedule's own; True where there is none."""
    conds = traced("tide_rs", lanes, W=width, k=1).premises
    assert len(conds) <= 1
    return conds[0] if conds else True


def premise_is_exact(lanes: int, width: int) -> Verdict:
    """The premise holds exactly where no two contributors of a wave land on one lane, for every M >= 2. Source: Proposition 4.1."""
    t = Terms()
    m, c1, c2 = t.var("M"), t.var("c1"), t.var("c2")
    accepted = t.read(premise(lanes, width), Values({"M": m}))

    def meet(a: Int, b: Int) -> list[Bool]:
        def turned(c: Int) -> Int:
            return t.ite(t.eq(c, m), 0, c)

        one_wave = t.eq(t.div(t.sub(a, 1), width), t.div(t.sub(b, 1), width))
        return [t.le(1, a), t.lt(a, b), t.le(b, m), one_wave, t.eq(t.mod(turned(a), lanes), t.mod(turned(b), lanes))]

    # Where it fails, the last multiple of L below M meets the own node.
    witness = t.sub(t.sub(m, 1), t.mod(t.sub(m, 1), lanes))
    asked = (
        Obligation("V104", "accepted widths never collide", (t.le(2, m), accepted, *meet(c1, c2)), False, may_be_empty=True),
        Obligation("V104", "refused widths do collide", (t.le(2, m), t.no(accepted)), t.every(meet(witness, m)), may_be_empty=True),
    )
    found = [solver.decide(t, o, m).verdict for o in asked]
    return next((v for v in found if v is not Verdict.PROVED), Verdict.PROVED)


def collides(nodes: int, lanes: int, width: int) -> bool:
    """By enumeration: two contributors of one wave land on one lane."""
    first = 1
    while first <= nodes:
        used = 0
        for c in range(first, min(first + width, nodes + 1)):
            bit = 1 << (c % nodes) % lanes
            if used & bit:
                return True
            used |= bit
        first += width
    return False


def paper_sweep() -> Sweep:
    """Counts the base plans of appendix D with the schedule's premise, proves the premise exact, and compares it with enumeration."""
    start = time.perf_counter()
    colliding: list[int] = []
    disagreements = 0
    verdicts = []
    for width in range(1, LANES + 1):
        cond = premise(LANES, width)
        refused = {m for m in range(FIRST_M, LAST_M + 1) if not evaluate(cond, {"M": m})}
        disagreements += sum(collides(m, LANES, width) is not (m in refused) for m in range(FIRST_M, LAST_M + 1))
        colliding.append(len(refused))
        verdicts.append(premise_is_exact(LANES, width))
    bad = sum(colliding)
    verdict = next((v for v in verdicts if v is not Verdict.PROVED), Verdict.PROVED)
    return Sweep((LANES * (LAST_M - FIRST_M + 1) - bad) * COMBINATIONS, bad * COMBINATIONS, tuple(colliding), verdict, disagreements, time.perf_counter() - start)
