"""Completeness: no wait and no join of a shipped schedule can be left out without a refutation."""
from dataclasses import replace

import pytest

from tidec.schedule.catalog import traced
from tidec.schedule.branch import specialise
from tidec.schedule.program import Op, OpKind, Program, statements
from tidec.verify.obligation import Verdict
from tidec.verify.prove import prove
from tidec.verify.solver import Answers

PROGRAMS = [("tide_ag", 4, {}), ("tide_ag", 4, {"cast": True}), ("tide_ag", 4, {"landings": 1}), ("tide_rs", 4, {"W": 2, "k": 1}), ("tide_rs", 4, {"W": 2, "k": 1, "n_stg": 1}), ("ring_ag", 4, {})]
ANSWERS = Answers()        # most claims of a program stand when one wait is left out


def without(program: Program, op_id: int) -> Program:
    def cut(items):
        return tuple(
            item if isinstance(item, Op) else replace(item, body=cut(item.body))
            for item in items if not (isinstance(item, Op) and item.id == op_id)
        )

    return replace(program, body=cut(program.body))


def droppable(name: str, lanes: int, knobs: dict, single_node: bool) -> list[int]:
    branch = specialise(traced(name, lanes, **knobs), single_node)
    return [s.op.id for s in statements(branch) if s.op.kind in (OpKind.WAIT, OpKind.JOIN)]


def refutation(name: str, lanes: int, knobs: dict, op_id: int, nodes: int | object) -> str:
    program = without(traced(name, lanes, **knobs), op_id)
    report = prove(program, first_only=True, answers=ANSWERS, **({"nodes": 1} if nodes == 1 else {}))
    return report.verdict.value


@pytest.mark.parametrize(("name", "lanes", "knobs"), PROGRAMS, ids=lambda x: str(x))
def test_no_wait_of_one_node_is_redundant(name, lanes, knobs):
    for op_id in droppable(name, lanes, knobs, single_node=True):
        assert refutation(name, lanes, knobs, op_id, 1) == Verdict.REFUTED.value, f"op {op_id} of {name} {knobs}"


@pytest.mark.parametrize(
    ("name", "lanes", "knobs"), [pytest.param(*p, marks=pytest.mark.slow if p[0] == "tide_rs" else ()) for p in PROGRAMS], ids=lambda x: str(x))
def test_no_wait_of_several_nodes_is_redundant(name, lanes, knobs):
    alone = set(droppable(name, lanes, knobs, single_node=True))
    for op_id in droppable(name, lanes, knobs, single_node=False):
        found = refutation(name, lanes, knobs, op_id, 0)
        assert found == Verdict.REFUTED.value, f"op {op_id} of {name} {knobs}{' (also of one node)' if op_id in alone else ''}"
