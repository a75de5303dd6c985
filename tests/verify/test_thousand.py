"""A seeded thousand of plans with at most nine nodes of four lanes: the prover, the explicit graph and the interpreter agree on every one of them.

Three of four are as shipped, one of four has a generated fault. What is proved for every M shows nothing at this M; what shows something is refused.
"""
from __future__ import annotations

import random

import pytest

from tidec.interpret.faults import faults
from tidec.interpret.machine import simulate
from tidec.schedule.catalog import traced
from tidec.schedule.program import Program
from tidec.schedule.references import ScheduleError
from tidec.schedule.tracer import _check_joins
from tidec.verify.graph import check
from tidec.verify.obligation import Verdict
from tidec.verify.prove import premises_hold, prove

NUM_CLASSES, NODES, FAULTY = 112, range(1, 10), 4        # 1008 plans


def drawn_class(draw: random.Random) -> tuple[str, int, dict[str, object]]:
    """A shipped schedule, lanes and knobs."""
    lanes = draw.randint(1, 4)
    if draw.random() < 0.25:
        return "tide_ag", lanes, dict(cast=draw.random() < 0.5, multicast=draw.random() < 0.5)
    width, k, parts = draw.randint(1, lanes), draw.randint(1, 4), draw.choice((1, 1, 2, 3))
    stripes = draw.choice((1, 1, 1, 2))
    return "tide_rs", lanes, dict(
        W=width, k=k, n_part=parts, n_out=draw.choice(["full", "full", min(k, width), min(k, width) + 1, 2 * k]), n_stg=draw.randint(1, 4),
        chunks=stripes * draw.choice((1, 1, 2)), stripes=stripes, multicast=draw.random() < 0.5,
    )


def is_refused_by_the_language(program: Program) -> bool:
    try:
        _check_joins(program.body)
    except ScheduleError:
        return True
    return False


@pytest.mark.sweep
@pytest.mark.parametrize("number", range(NUM_CLASSES))
def test_three_checkers_agree_at_every_node_count(number: int, draws, record_property) -> None:
    draw = draws(1000 + number)
    name, lanes, knobs = drawn_class(draw)
    program = traced(name, lanes, **knobs)
    about = f"{name} {lanes} {knobs}"
    if number % FAULTY == 0:
        fault = draw.choice(faults(program))
        program, about = fault.apply(program), f"{about} {fault}"
    report = prove(program, with_premises=True)
    is_proved = report.verdict is Verdict.PROVED and not is_refused_by_the_language(program)
    assert is_proved or number % FAULTY == 0, about
    for nodes in NODES:
        if not premises_hold(program, nodes):
            continue
        graph, values = check(program, nodes), simulate(program, nodes, seed=100 * number + nodes)
        shown = "; ".join([*map(str, graph.problems[:1]), values.problem])
        assert not (is_proved and shown), f"{about} is proved, and at M = {nodes}: {shown}"
    record_property("counted", (f"plans {'with a fault' if number % FAULTY == 0 else 'as shipped'}, each before three checkers", len(NODES), report.seconds))
