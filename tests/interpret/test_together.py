"""Both collectives of a group, and of two groups, in one order of calls: no interleaving of them stops, and none changes what they give."""
from __future__ import annotations

import random

import pytest

from tidec.interpret.machine import Policy
from tidec.interpret.together import simulate_together
from tidec.schedule.catalog import path, traced

CALLS = 2
QUEUES = (Policy.ONE_QUEUE, Policy.ONE_RAIL, Policy.RANDOM)


def turns(count: int, draw: random.Random) -> tuple[int, ...]:
    order = [i for i in range(count) for _ in range(CALLS + 1)]
    draw.shuffle(order)
    return tuple(order)


@pytest.mark.parametrize("policy", QUEUES)
@pytest.mark.parametrize(("nodes", "lanes", "knobs"), [(1, 2, {}), (2, 1, {}), (3, 2, dict(n_out=1, k=1)), (4, 1, dict(chunks=2, stripes=2))])
def test_any_order_of_calls_of_both_collectives_keeps_both_contracts(nodes: int, lanes: int, knobs: dict, policy: Policy, draws) -> None:
    both = traced("tide_ag", lanes), traced("tide_rs", lanes, **{"W": lanes, "k": 1, **knobs})
    digests = set()
    for seed in range(4):
        order = turns(2, draws(seed))
        report = simulate_together(both, nodes, CALLS, order, seed=seed, policy=policy)
        assert report.is_ok, (seed, order, report.problem)
        digests.add(report.digest)
    assert len(digests) == 1


def test_groups_that_are_gathered_ahead_do_not_stop_each_other(draws) -> None:
    four = (traced("tide_ag", 2), traced("tide_rs", 2, W=2, k=2), traced("tide_ag", 2, cast=True), traced("tide_rs", 2, W=1, k=1, n_out=1))
    for seed in range(3):
        report = simulate_together(four, 3, CALLS, turns(4, draws(seed)), seed=seed, policy=Policy.ONE_RAIL)
        assert report.is_ok, (seed, report.problem)


def test_a_wait_that_is_issued_ahead_of_its_producer_stops_on_one_communicator_and_not_on_two_streams() -> None:
    """Credits are told on another stream, behind the puts that need them: on streams of their own they come, on one communicator they do not."""
    text = path("tide_ag").read_text(encoding="utf-8")
    told = '            for h in s.doubling("h", M): s.signal(credit[h].at(wrap(n + h, M), j))\n'
    free = '            s.wait(scattered.call(e - 1))\n            for q in s.serial("q", 1, M): s.wait(sent.call(e - 1)[q])\n'
    assert text.count(told) == 1
    late = text.replace(told, "").replace(
        '    with s.stream("update"):', f'    with s.stream("credits"):\n        with s.when(no(s.single_node)):\n{free}{told}\n    with s.stream("update"):')
    gather = traced("tide_ag", 1, source=late)
    order = (0,) * (CALLS + 1)
    for seed in range(4):
        apart = simulate_together((gather,), 3, CALLS, order, seed=seed, policy=Policy.RANDOM)
        assert apart.is_ok, apart.problem
    assert "deadlock" in simulate_together((gather,), 3, CALLS, order, policy=Policy.ONE_RAIL).problem
