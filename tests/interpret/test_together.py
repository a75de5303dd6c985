"""Both collectives of a group, and of two groups, in one order of calls: no interleaving of them stops, and none changes what they give."""
from __future__ import annotations

import random

import pytest

from tidec.interpret.machine import Policy
from tidec.interpret.together import simulate_step, simulate_together
from tidec.schedule.catalog import path, step_path, traced, traced_step

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


STEPS = [(False, True, "full"), (True, True, "full"), (True, False, "full"), (True, False, 1), (False, True, 1)]


@pytest.mark.parametrize(("nodes", "lanes"), [(1, 2), (3, 1), (3, 2)])
def test_a_step_in_both_modes_gives_one_digest_in_every_order_of_moves(nodes: int, lanes: int) -> None:
    digests = set()
    for slot_reuse, ahead, n_out in STEPS:
        parts = traced("tide_ag", lanes), traced("tide_rs", lanes, W=lanes, k=1, n_out=n_out)
        step = traced_step(*parts, single_node=nodes == 1, slot_reuse=slot_reuse, ahead=ahead, is_played=True)
        for seed, policy in enumerate(QUEUES):
            report = simulate_step(step, nodes, CALLS, seed=seed, policy=policy)
            assert report.is_ok, (slot_reuse, ahead, n_out, policy, report.problem)
            digests.add(report.digest)
    assert len(digests) == 1


def test_an_all_gather_ahead_of_late_reads_stops_where_streams_share_a_queue() -> None:
    parts = traced("tide_ag", 1), traced("tide_rs", 1, W=1, k=1, n_out=1)
    step = traced_step(*parts, single_node=False, slot_reuse=True, ahead=True, is_played=True)
    stopped = simulate_step(step, 3, CALLS, policy=Policy.ONE_QUEUE)
    assert "deadlock" in stopped.problem and "consumed" in stopped.problem
    assert simulate_step(step, 3, CALLS, policy=Policy.RANDOM).is_ok       # on streams of their own nothing holds up the network phase


def test_gradients_that_are_overwritten_before_they_are_read_are_seen() -> None:
    parts = traced("tide_ag", 2), traced("tide_rs", 2, W=2, k=1)
    text = step_path().read_text(encoding="utf-8")
    gate = 'with s.stream("ag_entry"): s.wait(consumed)'
    assert text.count(gate) == 1
    step = traced_step(*parts, single_node=False, slot_reuse=True, ahead=True, source=text.replace(gate, "pass"), is_played=True)
    problems = [r.problem for seed in range(6) if not (r := simulate_step(step, 2, CALLS, seed=seed, policy=Policy.RANDOM)).is_ok]
    assert problems and all("a block that was read while it was written" in p for p in problems)
