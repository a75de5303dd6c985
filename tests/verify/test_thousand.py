"""A seeded thousand of plans with at most nine nodes of four lanes: the prover, the explicit graph and the interpreter agree on every one of them.

Three of four are as shipped, one of four has a generated fault. What is proved for every M shows nothing at this M; what shows something is refused. Where
the graph finds every access ordered, the interpreter finds the same in two interleavings, wrong or right, and no deadlock; the other way round there is no
such law, for a race need not show in the interleavings that are drawn. The summary of a run says how many faults were shown at some M, how many only the
prover or the language refuses, by kind, and how many nobody does. A plan whose M breaks a premise of its program is not run and not counted.
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

NUM_CLASSES, NODES, FAULTY = 114, range(1, 10), 4        # 1026 plans, of which 1012 hold the premises of their program


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


def test_more_than_a_thousand_plans_are_run(draws) -> None:
    drawn = [drawn_class(draws(1000 + number)) for number in range(NUM_CLASSES)]
    assert sum(premises_hold(traced(name, lanes, **knobs), nodes) for name, lanes, knobs in drawn for nodes in NODES) == 1012


@pytest.mark.sweep
@pytest.mark.parametrize("number", range(NUM_CLASSES))
def test_three_checkers_agree_at_every_node_count(number: int, draws, record_property) -> None:
    draw, is_faulty = draws(1000 + number), number % FAULTY == 0
    name, lanes, knobs = drawn_class(draw)
    program, kind = traced(name, lanes, **knobs), ""
    about = f"{name} {lanes} {knobs}"
    if is_faulty:
        fault = draw.choice(faults(program))
        program, about, kind = fault.apply(program), f"{about} {fault}", fault.kind.value
    report = prove(program, with_premises=True)
    is_proved = report.verdict is Verdict.PROVED and not is_refused_by_the_language(program)
    assert is_proved or is_faulty, about
    ran = [nodes for nodes in NODES if premises_hold(program, nodes)]
    shown_at = []
    for nodes in ran:
        graph, values = check(program, nodes), simulate(program, nodes, seed=100 * number + nodes)
        shown = "; ".join([*map(str, graph.problems[:1]), values.problem])
        if graph.problems or not values.is_ok:
            shown_at.append(nodes)
        assert not (is_proved and shown_at), f"{about} is proved, and at M = {nodes}: {shown}"
        if is_faulty and graph.is_clean:
            again = simulate(program, nodes, seed=100 * number + nodes + 10)
            assert (values.is_ok, values.digest) == (again.is_ok, again.digest), f"{about} is ordered at M = {nodes}, and runs differ: {values.problem}; {again.problem}"
            assert not values.problem.startswith("deadlock"), f"{about} is ordered at M = {nodes}, and stops: {values.problem}"
    record_property("counted", (f"plans {'with a fault' if is_faulty else 'as shipped'}, each before three checkers", len(ran), report.seconds))
    if is_faulty:
        said = "shown at some M" if shown_at else "that nobody refuses" if is_proved else f"that are refused, and shown at no M ({kind})"
        record_property("counted", (f"faults {said}", 1, report.seconds))
