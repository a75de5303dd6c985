"""The checker's own graph agrees with the two that share no line with it: faults that they see are refused, and nothing that is right is."""
from __future__ import annotations

import json

import pytest

from tidec.errors import TidecError
from tidec.interpret.faults import Fault, faults
from tidec.interpret.machine import simulate
from tidec.plan.edges import wait_edges
from tidec.schedule.branch import branch
from tidec.schedule.catalog import traced
from tidec.schedule.program import Program, jsonable
from tidec.verify import recheck_unfold
from tidec.verify.graph import check
from tidec.verify.recheck_gather import check_all_gather
from tidec.verify.recheck_graph import check_graph, graph_nodes
from tidec.verify.recheck_index import TooLarge
from tidec.verify.recheck_layout import Facts
from tidec.verify.recheck_program import check_program
from tidec.verify.recheck_reduce import check_reduce_scatter

RS = dict(n_out="full", n_part=1, n_stg=2, chunks=1, stripes=1)


def facts_of(name: str, nodes: int, lanes: int, program: Program, **knobs: object) -> Facts:
    collective = "all_gather" if name == "tide_ag" else "reduce_scatter"
    own = dict(cast=False, multicast=False) if name == "tide_ag" else RS
    return Facts("p", collective, nodes, lanes, {**own, **knobs}, json.loads(json.dumps(jsonable(program))))


def refusal(facts: Facts, program: Program, *, only_graph: bool = False) -> str:
    """What the checker says of a program that is no theorem, at one node count; "" if it accepts it."""
    waits = json.loads(json.dumps(jsonable(wait_edges(program))))
    try:
        check_program(facts, waits)
        if not only_graph:
            for n in range(facts.nodes):
                for j in range(facts.lanes):
                    for e in (4, 5):
                        (check_all_gather if facts.is_gather else check_reduce_scatter)(facts, (n, j, e), ())
        check_graph(facts, waits, facts.nodes)
    except TidecError as error:
        return str(error)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return f"malformed: {type(error).__name__} {error}"
    return ""


CLEAN = [
    ("tide_ag", 1, 2, {}), ("tide_ag", 3, 2, {}), ("tide_ag", 5, 1, {}), ("tide_ag", 3, 2, dict(landings=1)), ("tide_ag", 1, 2, dict(landings=1)), ("tide_ag", 4, 2, dict(cast=True, multicast=True)), ("tide_rs", 1, 2, dict(W=2, k=1)),
    ("tide_rs", 4, 2, dict(W=1, k=1)), ("tide_rs", 5, 2, dict(W=2, k=2, n_part=2, n_out=2)), ("tide_rs", 3, 1, dict(W=1, k=1, n_part=3, n_out=1)),
    ("tide_rs", 3, 2, dict(W=2, k=2, chunks=6, stripes=3)),
]


@pytest.mark.parametrize(("name", "nodes", "lanes", "knobs"), CLEAN)
def test_a_program_that_is_right_is_accepted(name, nodes, lanes, knobs):
    program = branch(traced(name, lanes, **knobs), nodes)
    assert refusal(facts_of(name, nodes, lanes, program, **knobs), program) == ""


HAND = {
    "a wait is dropped": ("tide_rs", 3, 2, dict(W=1, k=1), "s.wait(credit.call(pe)[c, pp].by(wrap(n + c, M), j))", "pass", "V201"),
    "a source is freed while it is sent": ("tide_ag", 3, 2, {}, "for h in s.doubling(\"h\", M): s.wait(sent[h])", "pass", "V205"),
    "a promise is never kept": ("tide_ag", 3, 2, {}, "s.signal(released)", "pass", "V203"),
    "ranks wait before they signal": ("tide_rs", 3, 2, dict(W=2, k=1), "for i in s.others(\"i\"): s.signal(freed[U].at(n, i))", "pass", "V203"),
    "a put names a context that there is not": ("tide_rs", 3, 2, dict(W=1, k=1, chunks=2, stripes=2), "context=context, contributor=c", "context=context + 1, contributor=c", "V102"),
    "a wave lands before it is whole": ("tide_rs", 3, 2, dict(W=1, k=1), "s.wait(arrived[c, *x, p].by(back(n - c, M), j))", "pass", "V201"),
}


@pytest.mark.parametrize("case", HAND)
def test_an_order_that_is_wrong_is_refused_by_its_code(case):
    from tidec.schedule.catalog import path

    name, nodes, lanes, knobs, old, new, code = HAND[case]
    text = path(name).read_text(encoding="utf-8")
    assert text.count(old) == 1, old
    program = branch(traced(name, lanes, source=text.replace(old, new), **knobs), nodes)
    assert code in refusal(facts_of(name, nodes, lanes, program, **knobs), program, only_graph=True)


def agree(name: str, nodes: int, lanes: int, knobs: dict, found: list[Fault]) -> tuple[int, int]:
    """Nothing wrong is accepted. Returns how many are wrong, and how many are accepted."""
    whole = branch(traced(name, lanes, **knobs), nodes)
    wrong = accepted = 0
    for fault in found:
        program = fault.apply(whole)
        told = refusal(facts_of(name, nodes, lanes, program, **knobs), program)
        is_wrong = not check(program, nodes).is_clean or not all(simulate(program, nodes, seed=seed).is_ok for seed in range(3))
        assert told or not is_wrong, f"accepted: {fault.kind.value}: {fault.description}"
        wrong, accepted = wrong + is_wrong, accepted + (not told)
    return wrong, accepted


FAULTY = [("tide_ag", 3, 2, {}), ("tide_ag", 2, 2, dict(cast=True)), ("tide_rs", 3, 2, dict(W=1, k=1)), ("tide_rs", 2, 1, dict(W=1, k=1, n_part=2, n_out=1)), ("tide_rs", 1, 2, dict(W=2, k=1))]


@pytest.mark.parametrize(("name", "nodes", "lanes", "knobs"), FAULTY)
def test_a_sample_of_faults_is_judged_alike(name, nodes, lanes, knobs, draws):
    draw = draws(nodes)
    found = draw.sample(faults(branch(traced(name, lanes, **knobs), nodes)), 30)
    wrong, accepted = agree(name, nodes, lanes, knobs, found)
    assert wrong > 10 and accepted < 15


@pytest.mark.slow
@pytest.mark.parametrize(("name", "nodes", "lanes", "knobs"), FAULTY)
def test_a_tenth_of_all_faults_is_judged_alike(name, nodes, lanes, knobs, draws):
    found = faults(branch(traced(name, lanes, **knobs), nodes))
    wrong, _ = agree(name, nodes, lanes, knobs, draws(10 + nodes).sample(found, len(found) // 10))
    assert wrong > 20


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "nodes", "lanes", "knobs"), FAULTY)
def test_every_fault_is_judged_alike(name, nodes, lanes, knobs):
    wrong, _ = agree(name, nodes, lanes, knobs, list(faults(branch(traced(name, lanes, **knobs), nodes))))
    assert wrong > 200


def test_the_node_counts_that_are_unfolded():
    """The own one where it is small, else the least ones with two and three waves that the premises admit."""
    assert graph_nodes(facts_of("tide_rs", 6, 2, traced("tide_rs", 2, W=2, k=1), W=2)) == (6,)
    assert graph_nodes(facts_of("tide_rs", 7, 2, traced("tide_rs", 2, W=2, k=1), W=2)) == (3, 5, 6)
    assert graph_nodes(facts_of("tide_rs", 100, 8, traced("tide_rs", 8, W=3, k=1), W=3)) == (4, 7, 8)
    assert graph_nodes(facts_of("tide_ag", 8, 2, traced("tide_ag", 2))) == (8,) and graph_nodes(facts_of("tide_ag", 9, 2, traced("tide_ag", 2))) == (2, 3, 5, 8)


def test_a_graph_that_is_too_large_is_given_up(monkeypatch):
    monkeypatch.setattr(recheck_unfold, "MAX_POINTS", 100)
    program = branch(traced("tide_ag", 2), 3)
    with pytest.raises(TooLarge, match="more than 100"):
        check_graph(facts_of("tide_ag", 3, 2, program), json.loads(json.dumps(jsonable(wait_edges(program)))), 3)
