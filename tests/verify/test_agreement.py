"""Three ways to see a fault agree: the language and the prover for every M, the explicit graph and the interpreter at M = 1..6.

What the prover proves, no other may see. A prover that gives up (unknown), or finds that a claim says nothing (vacuous), does not emit either, but it has
refuted nothing: what is wrong is refuted by a checker that runs nothing, which is the language, the prover, or the graph. Seeds and counts stand in the test.
"""
from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from textwrap import shorten

import pytest

from tidec.interpret.faults import Fault, Kind, faults
from tidec.interpret.machine import simulate
from tidec.schedule.catalog import path, traced
from tidec.schedule.program import Program
from tidec.schedule.references import ScheduleError
from tidec.schedule.tracer import _check_joins
from tidec.verify.graph import check
from tidec.verify.obligation import Verdict
from tidec.verify.prove import prove
from tidec.verify.solver import Answers

NODES = (2, 3, 1, 4, 5, 6)
ANSWERS = Answers()        # most claims of a program stand when one thing in it is changed


@dataclass(frozen=True)
class Seen:
    """What each checker says of one mutant: nothing, or in a few words what is wrong. verdict: the prover's."""

    fault: Fault
    language: str
    verdict: Verdict
    claim: str
    graph: str
    values: str

    @property
    def is_refused(self) -> bool:
        return bool(self.language) or self.verdict is not Verdict.PROVED

    @property
    def is_refuted(self) -> bool:
        """A checker that runs nothing shows it: a rule that is broken, a counterexample, or two ops without order."""
        return bool(self.language) or self.verdict is Verdict.REFUTED or bool(self.graph)

    @property
    def is_wrong(self) -> bool:
        return bool(self.graph or self.values)

    def __str__(self) -> str:
        return " | ".join((self.fault.kind.value, self.fault.description, self.language, f"{self.verdict.value} {self.claim}", self.graph, self.values))


def look(program: Program, fault: Fault) -> Seen:
    """The mutant before all checkers."""
    mutant = fault.apply(program)
    report = prove(mutant, first_only=True, answers=ANSWERS)
    claim = next((f"{c.code} {c.what}" for c in report.claims if c.verdict is report.verdict), "") if report.verdict is not Verdict.PROVED else ""
    return Seen(fault, by_language(mutant), report.verdict, claim, by_graph(mutant), by_values(mutant))


def by_language(program: Program) -> str:
    """The rule of the language that the program breaks: its text would be refused (P007)."""
    try:
        _check_joins(program.body)
    except ScheduleError as reason:
        return str(reason)
    return ""


def by_graph(program: Program) -> str:
    for nodes in NODES:
        if problems := check(program, nodes).problems:
            return f"M = {nodes}: {problems[0]}"
    return ""


def by_values(program: Program) -> str:
    for nodes in NODES:
        for seed in (nodes, nodes + 8, nodes + 16):       # three of the seven policies
            report = simulate(program, nodes, seed=seed)
            if not report.is_ok:
                return f"M = {nodes}, seed {seed}: {report.problem}"
    return ""


def sample(program: Program, a_kind: int, draw: random.Random) -> list[Fault]:
    """At most so many faults of each kind."""
    by_kind: dict[Kind, list[Fault]] = defaultdict(list)
    for fault in faults(program):
        by_kind[fault.kind].append(fault)
    return [f for of_kind in by_kind.values() for f in draw.sample(of_kind, min(a_kind, len(of_kind)))]


def agree(found: list[Seen]) -> None:
    """What the prover proves is not wrong."""
    holes = [str(s) for s in found if s.is_wrong and not s.is_refused]
    assert not holes, "\n".join(["proved, and wrong:", *holes])


def refuted(found: list[Seen]) -> None:
    """What is wrong is refuted by a checker that runs nothing, not only given up."""
    given_up = [str(s) for s in found if s.is_wrong and not s.is_refuted]
    assert not given_up, "\n".join(["wrong, and refuted by none of the language, the prover and the graph:", *given_up])


QUICK = [("ring_ag", 2, {}, 1, 20), ("tide_ag", 2, {}, 2, 12), ("tide_rs", 2, dict(W=2, k=1), 3, 8)]


@pytest.mark.parametrize(("name", "lanes", "knobs", "seed", "num"), QUICK, ids=[q[0] for q in QUICK])
def test_a_sample_of_faults_is_judged_alike(name, lanes, knobs, seed, num, draws):
    program, draw = traced(name, lanes, **knobs), draws(seed)
    found = [look(program, f) for f in draw.sample(sample(program, 2, draw), num)]
    agree(found)
    refuted(found)
    assert sum(s.is_wrong for s in found) > num // 2


CLASSES = [
    ("ring_ag", 1, {}), ("ring_ag", 3, {}), ("tide_ag", 1, dict(cast=True)), ("tide_ag", 2, {}), ("tide_ag", 3, dict(multicast=True)),
    ("tide_rs", 1, dict(W=1, k=1, n_part=2)), ("tide_rs", 2, dict(W=1, k=1)), ("tide_rs", 2, dict(W=2, k=1, n_part=2, n_out=2)), ("tide_rs", 3, dict(W=3, k=2)),
]


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("name", "lanes", "knobs"), CLASSES)
def test_many_faults_are_judged_alike(name, lanes, knobs, seed, draws):
    program, draw = traced(name, lanes, **knobs), draws(seed)
    agree([look(program, f) for f in sample(program, 1, draw)])


MATRIX = [("ring_ag", 2, {}), ("tide_ag", 2, {}), ("tide_rs", 2, dict(W=2, k=1)), ("tide_rs", 1, dict(W=1, k=1, n_part=2, n_out=1))]


@pytest.mark.slow
def test_the_matrix_of_kinds_and_checkers(golden, draws):
    """Of each kind one fault a program, seed 0: z3 sees a sample, of how many generated ones the first line says (136 of 5,185).

    Columns count faults; those that nobody sees at M = 1..6 are named below: harmless, or for larger M.
    """
    draw, programs = draws(0), [traced(name, lanes, **knobs) for name, lanes, knobs in MATRIX]
    found = [look(program, f) for program in programs for f in sample(program, 1, draw)]
    agree(found)
    refuted(found)
    wrong = [s for s in found if s.is_wrong]
    assert len(wrong) >= 60 and len({s.fault.kind for s in wrong}) >= 15
    columns = {
        "faults": lambda s: True, "wrong": lambda s: s.is_wrong, "graph": lambda s: bool(s.graph), "values": lambda s: bool(s.values),
        "language": lambda s: bool(s.language), "refuted": lambda s: s.verdict is Verdict.REFUTED,
        "gave up": lambda s: s.verdict in (Verdict.UNKNOWN, Verdict.VACUOUS), "proved": lambda s: s.verdict is Verdict.PROVED,
    }
    lines = [f"a sample of {len(found)} of {sum(len(faults(p)) for p in programs):,} generated faults", "", f"{'kind of fault':52}" + "".join(f"{c:>10}" for c in columns)]
    for kind in Kind:
        of_kind = [s for s in found if s.fault.kind is kind]
        if of_kind:
            lines.append(f"{kind.value:52}" + "".join(f"{sum(map(test, of_kind)):>10}" for test in columns.values()))
    lines.append(f"{'all':52}" + "".join(f"{sum(map(test, found)):>10}" for test in columns.values()))
    for words, is_there in (("seen by nobody", lambda s: not s.is_refused), ("refused, and not seen at M = 1..6", lambda s: s.is_refused)):
        lines += ["", f"{words}:"]
        lines += ["  " + shorten(f"{s.fault.kind.value}: {s.fault.description}", 160) for s in found if not s.is_wrong and is_there(s)]
    golden("fault-kinds.txt", "\n".join([*lines, ""]))


# ---- what the prover must claim about outputs, one case by hand each


OUTPUTS = {
    "a landing left out": ("tide_rs", (("s.land(inbox[g, ALL, *whole].at(n, ALL), into=out[p, ALL, *whole], seed=w.eq(0))", "pass"),), 2, 2, dict(W=1, k=1)),
    "a landing on one lane only": ("tide_rs", (("s.land(inbox[g, ALL, *whole]", "with s.when(j.eq(0)): s.land(inbox[g, ALL, *whole]"),), 2, 2, dict(W=1, k=1)),
    "a landing in another lane's output": ("tide_rs", (("into=out[p, ALL, *whole], seed", "into=out[p, ALL].at(n, (j + 1) % L), seed"),), 2, 2, dict(W=1, k=1)),
    "every contribution landed twice, in two uses": ("tide_rs", ((
        "s.land(inbox[g, ALL, *whole].at(n, ALL), into=out[p, ALL, *whole], seed=w.eq(0))",
        "s.land(inbox[g, ALL, *whole].at(n, ALL), into=out[p, ALL, *whole].of(p, 2*w), seed=w.eq(0)); "
        "s.land(inbox[g, ALL, *whole].at(n, ALL), into=out[p, ALL, *whole].of(p, 2*w + 1), seed=False)"),), 2, 2, dict(W=1, k=1)),
    "a part of one node's sum left out": ("tide_rs", (('s.serial("p", 0, n_part): level1(p, lambda', 's.serial("p", 0, n_part - 1): level1(p, lambda'),), 1, 1, dict(W=1, k=1, n_part=2)),
    "one node's sum left out": ("tide_rs", (('for p in s.serial("p", 0, n_part): level1(p, lambda o, at: rows[p, o, *at], lambda at: rows[p, j, *at], landing, lambda at: result[p, *at], seed=True)', "pass"),), 2, 1, dict(W=1, k=1)),
    "one node's sum as the sum of all": ("tide_rs", (("with s.when(s.single_node):                                #", "with s.when(True):                                         #"),), 1, 2, dict(W=1, k=1)),
    "an output without its last block": ("tide_rs", (('s.output("out",    Block.OUT_SLICE, part=n_part, sub=L,', 's.output("out",    Block.OUT_SLICE, part=n_part, sub=L - 1,'),), 2, 2, dict(W=1, k=1)),
    "lanes in reverse, and a landing that says so": ("tide_ag", (
        ("holds=lambda b, m, i: (m, i),", "holds=lambda b, m, i: (m, L - 1 - i),"), ("found=lambda b, m, i: dict(n=n, j=i, o=j,", "found=lambda b, m, i: dict(n=n, j=L - 1 - i, o=j,"),
        ("land[e % landings, m, j]", "land[e % landings, m, L - 1 - j]")), 2, 2, {}),
}


def changed(case: str) -> Program:
    name, texts, lanes, _, knobs = OUTPUTS[case]
    source = path(name).read_text(encoding="utf-8")
    for old, new in texts:
        assert source.count(old) == 1, f"{name}.py has no text {old!r}"
        source = source.replace(old, new)
    return traced(name, lanes, source=source, **knobs)


@pytest.mark.parametrize("case", OUTPUTS)
def test_the_interpreter_sees_a_wrong_output(case):
    assert not simulate(changed(case), OUTPUTS[case][3]).is_ok


@pytest.mark.parametrize("case", OUTPUTS)
def test_the_prover_refutes_a_wrong_output(case):
    assert prove(changed(case), first_only=True).verdict is Verdict.REFUTED
