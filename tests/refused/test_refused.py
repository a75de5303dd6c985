"""Every file beside this one is a schedule that must be refused; it says by which checkers, with which codes, and what about.

SCHEDULE, REPLACE: the shipped schedule and the texts that are replaced in it. PROVED_AT, PLAYED_AT: lanes (and nodes) and knobs for the prover, which
decides every M, and for the two checkers of small plans. ABOUT: the buffer or flag that a message must name. PROVER, GRAPH: codes; UNKNOWN: codes of
claims on which the solver gives up, which is a refusal too. VALUES: whether the interpreter meets a wrong value or a deadlock. STEP: the schedule is the
text of a step, with this mode and this place of its all-gather; the knobs are the reduce-scatter's.
"""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidec.inputs.ask import Mode
from tidec.interpret.machine import DRAWN, Policy, SimulationReport, simulate
from tidec.interpret.together import simulate_step
from tidec.schedule.catalog import path, step_path, traced, traced_step
from tidec.schedule.program import Program
from tidec.verify.graph import check

if TYPE_CHECKING:
    from tidec.verify.prove import Report

HERE = Path(__file__).parent
SEEDS = range(2 * len(Policy))


@dataclass(frozen=True)
class Refused:
    """One file: a mutant of a shipped schedule, and who must see it."""

    name: str
    title: str
    schedule: str
    replace: tuple[tuple[str, str], ...]
    proved_at: dict[str, object]
    played_at: dict[str, object]
    about: str
    prover: tuple[str, ...]
    unknown: tuple[str, ...]
    graph: tuple[str, ...]
    values: bool
    step: dict[str, str]

    def text(self) -> str:
        file = step_path() if self.step else path(self.schedule)
        text = file.read_text(encoding="utf-8")
        for old, new in self.replace:
            assert text.count(old) >= 1, f"{file.name} has no text {old!r}: bring {self.name}.py up to date"
            text = text.replace(old, new)
        return text

    def program(self, at: dict[str, object], is_played: bool = False) -> Program:
        knobs = {k: v for k, v in at.items() if k != "nodes"}
        if not self.step:
            return traced(self.schedule, source=self.text(), **knobs)
        parts = self.parts(knobs)
        return traced_step(*parts, single_node=at["nodes"] == 1, source=self.text(), is_played=is_played,
                           slot_reuse=self.step["mode"] == Mode.SLOT_REUSE.value, ahead=self.step["place"] == "ahead")

    def parts(self, knobs: dict[str, object]) -> tuple[Program, Program]:
        """Of a step. landings: of its all-gather."""
        own = {k: v for k, v in knobs.items() if k == "landings"}
        return traced("tide_ag", knobs["lanes"], **own), traced("tide_rs", **{k: v for k, v in knobs.items() if k not in own})

    def simulated(self, program: Program, seed: int) -> SimulationReport:
        nodes = self.played_at["nodes"]
        return simulate_step(program, nodes, seed=seed, policy=DRAWN[seed % len(DRAWN)]) if self.step else simulate(program, nodes, seed=seed)


def load(file: Path) -> Refused:
    scope: dict[str, object] = {}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), scope)
    return Refused(
        file.stem, scope["__doc__"].splitlines()[0], scope["SCHEDULE"], scope["REPLACE"], scope["PROVED_AT"], scope["PLAYED_AT"], scope["ABOUT"],
        scope["PROVER"], scope.get("UNKNOWN", ()), scope["GRAPH"], scope["VALUES"], scope.get("STEP", {}),
    )


CASES = [load(f) for f in sorted(HERE.glob("*.py")) if not f.stem.startswith(("test_", "__"))]
PARAMS = [pytest.param(c, id=c.name) for c in CASES]
# Files of which the prover runs in the default suite, one a code.
QUICK = {"slot_off_by_one", "stale_not_zeroed", "run_not_split", "credit_before_scatter", "credit_from_wrong_peer", "waits_for_itself", "promises_out_of_order",
         "shard_freed_before_sent", "spare_reuse", "one_landing_released_a_call_late", "credit_for_later_waves", "width_three", "step_gather_ahead_of_late_reads", "step_gate_dropped"}


@pytest.mark.parametrize("case", PARAMS)
def test_the_graph_sees_what_it_should(case: Refused) -> None:
    report = check(case.program(case.played_at), case.played_at["nodes"])
    assert report.codes == case.graph, "\n".join(map(str, report.problems))
    if report.problems:
        assert any(case.about in str(p) for p in report.problems), "\n".join(map(str, report.problems))


@pytest.mark.parametrize("case", PARAMS)
def test_the_interpreter_sees_what_it_should(case: Refused) -> None:
    program = case.program(case.played_at, is_played=True)
    runs = (case.simulated(program, seed) for seed in SEEDS)
    problem = next((r.problem for r in runs if not r.is_ok), "")
    assert bool(problem) == case.values, problem


def proved(case: Refused) -> Report:
    from tidec.verify.prove import prove
    from tidec.verify.step import Place, prove_step, step_of

    if not case.step:
        return prove(case.program(case.proved_at))
    return prove_step(step_of(*case.parts(case.proved_at), mode=Mode(case.step["mode"]), place=Place(case.step["place"]), source=case.text()))


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name, marks=[] if c.name in QUICK else [pytest.mark.slow]) for c in CASES])
def test_the_prover_sees_what_it_should(case: Refused) -> None:
    pytest.importorskip("z3")
    from tidec.verify.obligation import Verdict

    report = proved(case)
    refuted = {c.code for c in report.claims if c.verdict is Verdict.REFUTED}
    unknown = {c.code for c in report.claims if c.verdict is Verdict.UNKNOWN}
    assert set(case.prover) <= refuted, (sorted(refuted), sorted(unknown))
    assert set(case.unknown) <= unknown, (sorted(refuted), sorted(unknown))
    assert all(c.example for c in report.claims if c.verdict is Verdict.REFUTED)
    if case.prover:
        told = [f"{c.what}\n{c.diagnostic}" for c in report.claims if c.verdict is Verdict.REFUTED]
        assert any(case.about in text for text in told), told
    else:
        assert report.verdict is (Verdict.UNKNOWN if case.unknown else Verdict.PROVED)


def test_every_fault_is_seen_by_two_checkers() -> None:
    alone = {c.name for c in CASES if bool(c.prover or c.unknown) + bool(c.graph) + c.values < 2}
    assert not alone


def test_the_matrix_of_faults_and_checkers(golden) -> None:
    """The prover's claims for every M in two columns: algebra is what is said of places and contents (V1xx), order what comes before what (V2xx)."""
    lines = [f"{'fault':48}{'algebra':16}{'order':12}{'graph':18}{'values':8}about"]
    for c in sorted(CASES, key=lambda c: (c.schedule, c.name)):
        claims = [*c.prover, *(f"{u}?" for u in c.unknown)]
        algebra, order = (" ".join(code for code in claims if code.startswith(of)) or "-" for of in ("V1", "V2"))
        assert all(code.startswith(("V1", "V2")) for code in claims), c.name
        lines.append(f"{c.schedule.removeprefix('tide_') + ' ' + c.name:48}{algebra:16}{order:12}{' '.join(c.graph) or '-':18}{'wrong' if c.values else '-':8}{c.about}")
    lines.append("")
    golden("faults.txt", "\n".join(lines))
