"""Faults of a step of backward, one thing changed in what stands between the two collectives: the prover for every M, the explicit graph, the interpreter.

What the prover proves, no other may see. A fault that only the played form of a step shows is judged there: both forms are changed alike.
"""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import pytest

from tidec.inputs.ask import Mode
from tidec.interpret.faults import Fault, Kind, faults
from tidec.interpret.machine import Policy
from tidec.interpret.together import simulate_step
from tidec.schedule.catalog import STEP, traced, traced_step
from tidec.schedule.program import Program
from tidec.verify.graph import check
from tidec.verify.obligation import Verdict
from tidec.verify.solver import Answers
from tidec.verify.step import Place, Step, prove_step, step_of

NODES = (2, 3)
POLICIES = (Policy.RANDOM, Policy.ONE_QUEUE, Policy.SLOW_STREAM, Policy.NEWEST)
ANSWERS = Answers()
PARTS = traced("tide_ag", 2), traced("tide_rs", 2, W=2, k=1, n_out=1)


@dataclass(frozen=True)
class Seen:
    """What each checker says of a fault of the step with its all-gather behind the network phase."""

    fault: Fault
    verdict: Verdict
    code: str
    graph: str
    values: str

    @property
    def is_wrong(self) -> bool:
        return bool(self.graph or self.values)


def own(program: Program) -> list[Fault]:
    """The faults of ops and flags of the step's own text."""
    return [f for f in faults(program) if f"{STEP}.py:" in f.description.partition(": ")[0] or f.description.startswith(("filled:", "consumed:"))]


@cache
def every() -> tuple[Step, tuple[Fault, ...], Program, dict[str, Fault]]:
    """The step with its faults, and the form of it that is played with its own, by their descriptions."""
    one = step_of(*PARTS, mode=Mode.SLOT_REUSE, place=Place.BEHIND)
    played = traced_step(*PARTS, single_node=False, slot_reuse=True, ahead=False, is_played=True)
    return one, tuple(own(one.several)), played, {f.description: f for f in own(played)}


def look(number: int) -> Seen:
    one, of_step, played, same = every()
    fault = of_step[number]
    mutant = fault.apply(one.several)
    report = prove_step(replace(one, several=mutant), first_only=True, answers=ANSWERS)
    bad = next((c.code for c in report.claims if c.verdict is not Verdict.PROVED), "")
    graph = next((f"M = {m}: {p}" for m in NODES for p in check(mutant, m).problems), "")
    return Seen(fault, report.verdict, bad, graph, by_values(same[fault.description].apply(played)) if fault.description in same else "")


def by_values(program: Program) -> str:
    for nodes in NODES:
        for seed, policy in enumerate(POLICIES):
            try:
                report = simulate_step(program, nodes, 2, seed=seed, policy=policy)
            except AssertionError as outside:       # an access of a block that is not there
                return str(outside)
            if not report.is_ok:
                return f"M = {nodes}, seed {seed}: {report.problem}"
    return ""


def agree(found: list[Seen]) -> None:
    holes = [f"{s.fault.kind.value} | {s.fault.description} | {s.graph} | {s.values}" for s in found if s.is_wrong and s.verdict is Verdict.PROVED]
    assert not holes, "\n".join(["proved, and wrong:", *holes])


def test_a_sample_of_faults_of_a_step_is_judged_alike(draws):
    found = [look(number) for number in draws(7).sample(range(len(every()[1])), 2)]
    agree(found)
    assert sum(s.verdict is not Verdict.PROVED for s in found) >= 1


@pytest.mark.slow
def test_the_matrix_of_faults_of_a_step(golden):
    found = [look(number) for number in range(len(every()[1]))]
    agree(found)
    kinds = [k for k in Kind if any(s.fault.kind is k for s in found)]
    lines = [f"{'kind of fault':52}{'faults':>10}{'prover':>10}{'graph':>10}{'values':>10}   codes"]
    for kind in kinds:
        of_kind = [s for s in found if s.fault.kind is kind]
        codes = Counter(s.code for s in of_kind if s.code)
        counts = (len(of_kind), sum(codes.values()), sum(bool(s.graph) for s in of_kind), sum(bool(s.values) for s in of_kind))
        lines.append(f"{kind.value:52}" + "".join(f"{n:>10}" for n in counts) + f"   {' '.join(f'{c} {n}' for c, n in sorted(codes.items()))}".rstrip())
    lines += ["", "proved, and seen by nobody:", *(f"  {s.fault.description}" for s in found if s.verdict is Verdict.PROVED), ""]
    golden("faults/step.txt", "\n".join(lines))
