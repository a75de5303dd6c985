"""Faults before every witness: the prover for every M, the explicit graph, the interpreter's values, and a run of the emitted program.

Of each kind one fault a program. A mutant is emitted, compiled and run on the host target at M = 1, 2, 3, 5 in drawn interleavings, with poison; it is seen
where it stops, or gives other bits than the program without the fault. What the prover proves, no run may see.
"""
from __future__ import annotations

import importlib.util
import json
import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from types import ModuleType

import pytest

from tidec.emit.render import render
from tidec.errors import TidecError
from tidec.inputs.ask import Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.interpret.bits import carry_out
from tidec.interpret.faults import Kind, faults
from tidec.plan.ir import Plan
from tidec.plan.layout import lay_out
from tidec.run.compare import first_difference
from tidec.run.host import HostJob, run_host
from tidec.run.made import make
from tidec.schedule.branch import branch
from tidec.schedule.catalog import path, traced
from tidec.schedule.program import Program
from tidec.verify.certificate import Proved

NODES, CALLS, SEEDS = (1, 2, 3, 5), 4, 40
SILENCE_S = 60.0
SHAPES = ((7, 3), (33,), (0, 4), (50, 6), (1, 2, 2))
MATRIX = [("tide_ag", 2, {}), ("tide_rs", 2, dict(W=2, k=1))]


def witnesses() -> ModuleType:
    """tests/verify/test_agreement.py, which asks the prover, the graph and the interpreter."""
    name = "tests_verify_agreement"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent.parent / "verify" / "test_agreement.py")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def planned(program: Program, nodes: int) -> Plan:
    """A program as a plan of five parameters, whatever is wrong with it. Raises TidecError where no plan carries it out."""
    group = Group("g", 1, tuple(Parameter(f"p{i}", s, Dtype.BF16) for i, s in enumerate(SHAPES)))
    collective = Collective.REDUCE_SCATTER if program.name == "tide_rs" else Collective.ALL_GATHER
    types = (Dtype.BF16,) * len(SHAPES)
    return Plan(collective, nodes, Lowering.P2P, branch(program, nodes), lay_out(group, nodes * program.lanes), types, types, ("g",))


class Runner:
    """Runs mutants in a process that may die of them: they may name memory that is not there, or never end."""

    def __init__(self, library: Path, matrix: tuple[str, int, dict]):
        self._told, self._process = json.dumps([str(library), *matrix]), None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process.stdin.close()
            self._process.stdout.close()
        self._process = None

    def __call__(self, number: int, nodes: int) -> str:
        """What a run of fault `number` of the program shows; -1 is the program itself."""
        if self._process is None:
            self._process = subprocess.Popen((sys.executable, __file__, self._told), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                             env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)})
        self._process.stdin.write(f"{number} {nodes}\n")
        self._process.stdin.flush()
        is_there, _, _ = select.select([self._process.stdout], [], [], SILENCE_S)
        said = self._process.stdout.readline() if is_there else ""
        if said:
            return json.loads(said)
        self._process.kill()
        code = self._process.wait()
        self.__exit__()
        return "never ends" if not is_there else f"dies of signal {-code}"


@dataclass(frozen=True)
class Mutant:
    """A fault, by number, at one node count. plan: what it becomes, `None` where no plan or no C++ carries it out, as `refused` says; is_same: its ops are the program's own."""

    number: int
    good: Plan
    plan: Plan | None
    refused: str
    is_same: bool


def mutants(program: Program, of: list[int]) -> Iterator[Mutant]:
    all_faults = faults(program)
    for nodes in NODES:
        good = planned(program, nodes)
        for number in of:
            try:
                plan = planned(all_faults[number].apply(program), nodes)
                render([Proved(plan, "{}")])
            except TidecError as error:
                yield Mutant(number, good, None, error.diagnostics[0].code, False)
                continue
            yield Mutant(number, good, plan, "", numbered(plan) == numbered(good))


def numbered(plan: Plan) -> str:
    """A plan without the numbers of its ops, by which its wait edges go too: they change with any op of any branch."""
    content = json.loads(plan.to_json())
    del content["waits"]
    return re.sub(r'"id": \d+', "", json.dumps(content))


def by_run(library: Path, good: Plan, plan: Plan) -> str:
    """Why a plan stops, or where its bits differ from the good one's; empty where it shows nothing."""
    given = make(good, calls=CALLS, is_poisoned=True)
    job = HostJob(library, plan, given, is_poisoned=True, first_seed=1, num_seeds=SEEDS, is_in_process=True, deadline_s=10.0)
    try:
        ran = run_host(job)
    except TidecError as stop:
        return stop.diagnostics[0].sentence.partition("stops: ")[2]
    if len(set(ran.digests)) > 1:
        return "interleavings differ"
    d = first_difference(plan, ran.outputs, carry_out(good, given, is_poisoned=True))
    return f"call {d.call}, rank {d.rank}, {d.parameter} differs" if d else ""


def main() -> None:
    """The process of a Runner."""
    library, name, lanes, knobs = json.loads(sys.argv[1])
    program = traced(name, lanes, **knobs)
    of = faults(program)
    for line in sys.stdin:
        number, nodes = map(int, line.split())
        good = planned(program, nodes)
        print(json.dumps(by_run(Path(library), good, good if number < 0 else planned(of[number].apply(program), nodes))), flush=True)


def sample(program: Program) -> list[int]:
    """The middle fault of each kind, by number."""
    of_kind: dict[Kind, list[int]] = {}
    for i, fault in enumerate(faults(program)):
        of_kind.setdefault(fault.kind, []).append(i)
    return [found[len(found) // 2] for found in of_kind.values()]


def test_what_is_left_out_shows_in_a_run(hosted):
    """A signal that nobody gives, a stale block, a wait for staging that only some interleavings miss; and the program itself."""
    matrix = ("tide_rs", 2, dict(W=2, k=1))
    program, source = traced(matrix[0], 2, **matrix[2]), path("tide_rs").read_text().splitlines()
    words = {Kind.SIGNAL_DROPPED: "s.signal(owned[p])", Kind.ZERO_DROPPED: "s.zero(", Kind.WAIT_DROPPED: "s.wait(staged["}
    lines = {kind: next(i for i, line in enumerate(source, 1) if text in line) for kind, text in words.items()}
    # Of the ops that a line gives, the first that is there on five nodes.
    of = [[i for i, f in enumerate(faults(program)) if f.kind is kind and f":{lines[kind]}:" in f.description.replace(">", ":")] for kind in words]
    found = [next(m for m in mutants(program, numbers) if m.good.nodes == 5 and not m.is_same) for numbers in of]
    with Runner(hosted([*(m.plan for m in found), found[0].good], flags=("-O0",)), matrix) as run:
        shown = [run(m.number, 5) for m in found]
        assert "owned by rank" in shown[0] and "differs" in shown[1] + shown[2] and all(shown), shown
        assert run(-1, 5) == ""


@pytest.mark.slow
def test_the_matrix_of_kinds_and_witnesses(golden, hosted):
    ask = witnesses()
    rows = []
    for name, lanes, knobs in MATRIX:
        program = traced(name, lanes, **knobs)
        of, all_faults = sample(program), faults(program)
        found = list(mutants(program, of))
        library = hosted([m.plan for m in found if m.plan is not None and not m.is_same], flags=("-O0",))
        with Runner(library, (name, lanes, knobs)) as run:
            for number in of:
                own = [m for m in found if m.number == number]
                shown = [f"M = {m.good.nodes}: {said}" for m in own if m.plan is not None and not m.is_same and (said := run(number, m.good.nodes))]
                rows.append((all_faults[number], ask.look(program, all_faults[number]), any(m.refused for m in own), shown))
    unseen = [f"{s} | {shown[0]}" for _, s, _, shown in rows if shown and not s.is_refused]
    assert not unseen, "\n".join(["proved, and a run shows it:", *unseen])
    columns = {
        "faults": lambda r: True, "prover": lambda r: r[1].is_refused, "graph": lambda r: bool(r[1].graph), "values": lambda r: bool(r[1].values),
        "no plan": lambda r: r[2], "host run": lambda r: bool(r[3]),
    }
    lines = [f"{'kind of fault':52}" + "".join(f"{c:>10}" for c in columns)]
    for kind in Kind:
        of_kind = [r for r in rows if r[0].kind is kind]
        if of_kind:
            lines.append(f"{kind.value:52}" + "".join(f"{sum(map(test, of_kind)):>10}" for test in columns.values()))
    lines.append(f"{'all':52}" + "".join(f"{sum(map(test, rows)):>10}" for test in columns.values()))
    for words, is_there in (
        ("no run shows it, and an other witness does", lambda r: not r[3] and not r[2] and (r[1].is_refused or r[1].is_wrong)),
        ("nobody refuses it", lambda r: not r[3] and not r[2] and not r[1].is_refused and not r[1].is_wrong),
    ):
        lines += ["", f"{words}:"]
        lines += ["  " + shorten(f"{r[0].kind.value}: {r[0].description}", 160) for r in rows if is_there(r)]
    golden("faults/matrix.txt", "\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
