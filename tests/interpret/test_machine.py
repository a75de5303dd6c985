"""The interpreter: the contract of every call, under every policy of interleaving."""
from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tidec.interpret.machine import Policy, simulate
from tidec.interpret.provenance import TORN, UNWRITTEN, Token, contract_key, difference, expected, handed_in, named, seed
from tidec.schedule.catalog import traced
from tidec.schedule.program import Block, OpKind, Program, statements


def drop(p: Program, kind: OpKind, nth: int = 0) -> int:
    return [s.op.id for s in statements(p) if s.op.kind is kind][nth]


def waits_for(p: Program, flag: str) -> list[int]:
    return [s.op.id for s in statements(p) if s.op.waits and s.op.waits[0].flag == flag]


def test_the_contract_by_hand() -> None:
    # One node, two lanes: the second part of lane 1's output is what the caller had, and the row for lane 1 of both ranks.
    value = expected(Block.OUT_ROW, 0, 1, (1,), 4, nodes=1, lanes=2)
    assert value == (*seed(4), Token(0, 0, (1, 1), 4), Token(0, 1, (1, 1), 4))
    assert value[1:] == handed_in(Block.GRAD_ROW, 0, 0, (1, 1), 4) + handed_in(Block.GRAD_ROW, 0, 1, (1, 1), 4)
    assert expected(Block.PLACED, 0, 1, (0, 3, 2), 4, nodes=4, lanes=3) == handed_in(Block.SHARD, 3, 2, (0,), 4)


def test_an_output_of_packed_shards_holds_what_its_schedule_says() -> None:
    rows = traced("ring_ag", 2).buffer("rows")
    # Slot 2 of node 3 of 4 is the shard of node 1, in either bank.
    for bank in (0, 1):
        assert named(rows.holds, rows.dims, 3, 1, (bank, 2), 5, nodes=4) == handed_in(Block.SHARD, 1, 1, (0,), 5)
        assert contract_key(Block.SHARD, (bank, 2)) == (2,)


def test_a_wrong_value_is_told_in_words() -> None:
    a, b = Token(0, 0, (0, 1, 0), 2), Token(0, 1, (0, 1, 0), 2)
    assert difference((b, a), (a, b)) == ""
    assert difference((a, a), (a, b)) == "holds rank 0.0[0, 1, 0] of call 2 1 times too often; lacks rank 0.1[0, 1, 0] of call 2"
    assert difference(UNWRITTEN, (a,)) == "holds memory that nobody wrote which does not belong there; lacks rank 0.0[0, 1, 0] of call 2"
    assert "read while it was written" in difference(TORN, (a,))


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize(("name", "lanes", "nodes", "knobs"), [
    ("tide_ag", 2, 5, dict()), ("tide_ag", 2, 3, dict(cast=True, multicast=True)), ("tide_rs", 2, 5, dict(W=1, k=1)),
    ("ring_ag", 2, 4, dict()), ("tide_rs", 4, 3, dict(W=2, k=2, n_part=2, n_out=2)), ("tide_rs", 3, 1, dict(W=3, k=1)), ("tide_ag", 3, 1, dict()),
    ("tide_rs", 2, 3, dict(W=2, k=2, chunks=4, stripes=2, n_stg=3)), ("tide_rs", 2, 1, dict(W=2, k=1, chunks=3)),
])
def test_every_policy_keeps_the_contract(name: str, lanes: int, nodes: int, knobs: dict, policy: Policy) -> None:
    program = traced(name, lanes, **knobs)
    runs = [simulate(program, nodes, seed=s, policy=policy) for s in (1, 2)]
    assert all(r.is_ok for r in runs), [r.problem for r in runs]
    # The order of every sum is fixed, so that all interleavings give the same bits.
    assert runs[0].digest == runs[1].digest == simulate(program, nodes, seed=0, policy=Policy.OLDEST).digest


def test_a_run_is_repeatable() -> None:
    program = traced("tide_rs", 2, W=2, k=1)
    assert simulate(program, 4, seed=5) == simulate(program, 4, seed=5)


def test_a_deadlock_names_who_waits_for_what() -> None:
    program = traced("tide_ag", 2)
    report = simulate(program, 2, drop=waits_for(program, "released")[0] + 1)
    assert not report.is_ok and "deadlock" in report.problem and "waits for room" in report.problem


def test_in_one_queue_an_op_behind_its_producer_is_a_deadlock() -> None:
    program = traced("tide_rs", 2, W=2, k=2, n_out=1)
    report = simulate(program, 3, policy=Policy.ONE_QUEUE)
    assert not report.is_ok and "deadlock" in report.problem and "summed" in report.problem
    assert simulate(program, 2, policy=Policy.ONE_QUEUE).is_ok


def test_a_missing_copy_shows_as_memory_that_nobody_wrote() -> None:
    program = traced("tide_ag", 2)
    report = simulate(program, 2, drop=drop(program, OpKind.COPY))
    assert not report.is_ok and "memory that nobody wrote" in report.problem and "land[0, " in report.problem


def test_memory_that_does_not_rest_at_zero_starts_as_poison() -> None:
    program = traced("tide_rs", 2, W=1, k=1)
    poisoned = replace(program, buffers=tuple(replace(b, rests_at_zero=False) for b in program.buffers))
    assert simulate(program, 3).is_ok
    report = simulate(poisoned, 3)
    assert not report.is_ok and "memory that nobody wrote" in report.problem


def test_a_freed_input_is_poison() -> None:
    program = traced("tide_rs", 2, W=2, k=1)
    (free,) = [s.op.id for s in statements(program) if s.op.kind is OpKind.FREE and s.op.writes[0].buffer == "grad"]
    early = replace(program, body=tuple(_moved_free(program.body, free)))
    report = simulate(early, 3)
    assert not report.is_ok and "memory that was freed" in report.problem


def _moved_free(items: tuple, free: int) -> list:
    """The free op stands first in its body."""
    moved = []
    for item in items:
        if hasattr(item, "body"):
            moved.append(replace(item, body=tuple(_moved_free(item.body, free))))
        elif item.id == free:
            moved.insert(0, item)
        else:
            moved.append(item)
    return moved


def plans(r: random.Random) -> tuple[str, int, int, dict[str, object]]:
    """A shipped schedule, lanes, nodes and knobs, small enough for a second."""
    lanes = r.randint(1, 4)
    if r.random() < 0.3:
        return "tide_ag", lanes, r.randint(1, 9), dict(cast=r.random() < 0.5, multicast=r.random() < 0.5)
    width, k, parts = r.choice([w for w in range(1, lanes + 1) if lanes % w == 0]), r.randint(1, 5), r.randint(1, 3)
    n_out = r.choice(["full", min(k, width), min(k, width) + 1, 2 * k])
    nodes = r.randint(1, max(1, min(9, 18 // lanes // parts)))
    stripes = r.choice((1, 1, 2, 3))
    cut = dict(stripes=stripes, chunks=stripes * r.randint(1, 3)) if nodes * lanes * parts <= 12 else {}
    return "tide_rs", lanes, nodes, dict(W=width, k=k, n_part=parts, n_out=n_out, n_stg=r.randint(1, 4), multicast=r.random() < 0.5, **cut)


@pytest.mark.parametrize("seed", [pytest.param(s, marks=[] if s < 14 else [pytest.mark.slow]) for s in range(200)])
def test_shipped_schedules_keep_the_contract(seed: int, draws) -> None:
    name, lanes, nodes, knobs = plans(draws(seed))
    report = simulate(traced(name, lanes, **knobs), nodes, seed=seed)
    assert report.is_ok, (name, lanes, nodes, knobs, report.policy.value, report.problem)
