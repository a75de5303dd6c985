"""Plans on real memory: what is exact, what poison shows, and what a changed step does."""
from __future__ import annotations

import math
import struct
from dataclasses import replace

import pytest

from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.interpret.bytes import NUM_VALUES, POISON, decode, encode, play, value
from tidec.plan.ir import Plan
from tidec.plan.lower import lower
from tidec.schedule.program import OpKind


def plan_of(collective: Collective, topo: str, *shapes: tuple[int, ...], dtype: Dtype = Dtype.BF16) -> Plan:
    topology = parse_topology(topo)
    group = Group("g", 1, tuple(Parameter(f"p{i}", s, dtype) for i, s in enumerate(shapes)))
    return lower(Ask(topology, group, Lowering.P2P, parse_knobs((), topology.lanes, nodes=topology.nodes)), collective)


def test_values_differ_and_are_exact_in_every_type():
    for e in range(4):
        numbers = [value(e, i) for i in range(NUM_VALUES)]
        assert len(set(numbers)) == NUM_VALUES and max(map(abs, numbers)) * 256 <= 2**24
        for dtype in (Dtype.BF16, Dtype.FP16, Dtype.FP32):
            assert decode(encode(numbers, dtype), dtype) == tuple(numbers)


def test_bf16_is_the_upper_half_of_fp32():
    assert encode([1.0, -2.5], Dtype.BF16) == struct.pack("<f", 1.0)[2:] + struct.pack("<f", -2.5)[2:]
    assert all(math.isnan(x) for dtype in (Dtype.BF16, Dtype.FP16, Dtype.FP32) for x in decode(POISON * 4, dtype))


def test_one_rank_gathers_its_own_rows():
    report = play(plan_of(Collective.ALL_GATHER, "1x1", (2, 2)), calls=1)
    assert report.is_ok and report.steps > 0


def test_a_call_whose_values_cannot_be_told_apart_is_refused():
    with pytest.raises(ValueError, match="2401 values cannot be told apart"):
        play(plan_of(Collective.ALL_GATHER, "1x2", (49, 49)))


def without(plan: Plan, kind: OpKind, nth: int = 0):
    """The plan's steps, of which every rank leaves out the moves of its nth step of that kind."""

    def steps(rank: int, call: int):
        seen = 0
        for step in plan.steps(rank, call):
            if step.kind is kind:
                seen += 1
            yield replace(step, moves=()) if step.kind is kind and seen == nth + 1 else step

    return steps


def test_a_copy_that_is_left_out_leaves_a_nan_in_the_landing():
    plan = plan_of(Collective.ALL_GATHER, "1x2", (3, 2))
    report = play(plan, steps=without(plan, OpKind.COPY))
    assert not report.is_ok and "the landing of rank" in report.problem and "holds nan" in report.problem


def test_a_gradient_that_is_left_out_leaves_a_nan_in_the_sum():
    plan = plan_of(Collective.REDUCE_SCATTER, "1x2", (3, 2))
    report = play(plan, steps=without(plan, OpKind.COPY))
    assert not report.is_ok and "the output of rank" in report.problem and "holds nan" in report.problem


def test_a_write_outside_a_memory_is_told_in_bytes():
    plan = plan_of(Collective.ALL_GATHER, "1x2", (3, 2))

    def steps(rank: int, call: int):
        for step in plan.steps(rank, call):
            yield replace(step, moves=tuple(replace(m, dst=replace(m.dst, offset=plan.arena.bytes - 1)) for m in step.moves))

    report = play(plan, steps=steps)
    assert not report.is_ok and "of arena on rank" in report.problem and f"are outside its {plan.arena.bytes}" in report.problem


def test_a_step_that_never_comes_is_a_deadlock():
    plan = plan_of(Collective.REDUCE_SCATTER, "2x1", (3, 2))
    report = play(plan, steps=lambda rank, call: (s for s in plan.steps(rank, call) if not (s.kind is OpKind.PUT and rank == 0)))
    assert not report.is_ok and "every rank waits" in report.problem
