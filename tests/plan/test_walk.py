"""The steps of all ranks move exactly the right bytes: whole calls are carried out on memory, in drawn legal orders."""
import pathlib
import time

import pytest

from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter, load_groups
from tidec.inputs.topology import parse_topology
from tidec.interpret.bytes import play
from tidec.plan.ir import Plan
from tidec.plan.lower import lower
from tidec.schedule.program import OpKind

ROOT = pathlib.Path(__file__).resolve().parents[2]
GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER


def planned(topo: str, shapes, collective: Collective, *knobs: str, lowering=Lowering.P2P, stored=Dtype.BF16, gathered=None, frozen=()) -> Plan:
    topology = parse_topology(topo)
    params = tuple(Parameter(f"p{i}", s, stored, requires_grad=i not in frozen) for i, s in enumerate(shapes))
    ask = Ask(topology, Group("g", 1, params, param_dtype=gathered), lowering, parse_knobs(knobs, topology.lanes, nodes=topology.nodes))
    return lower(ask, collective)


# Rows that divide and that do not, a vector, odd widths, fewer rows than ranks, none at all, and a parameter of several sub-slices.
SHAPES = ((5, 4), (3,), (8, 3), (1, 5), (0, 2), (7, 2, 3))


def check(plan: Plan, seed: int, accumulate: bool = False) -> None:
    report = play(plan, seed=seed, accumulate=accumulate)
    assert report.is_ok, (seed, report.problem)


@pytest.mark.parametrize("topo", ["1x1", "1x2", "2x1", "2x2", "3x2", "5x1", "4x3"])
@pytest.mark.parametrize("lowering", Lowering)
def test_every_landing_is_the_parameter_major_concatenation(topo, lowering):
    check(planned(topo, SHAPES, GATHER, lowering=lowering), 3)


@pytest.mark.parametrize("topo", ["1x2", "2x2", "3x2"])
def test_a_cast_lands_the_gathered_type(topo):
    plan = planned(topo, SHAPES, GATHER, stored=Dtype.FP32, gathered=Dtype.BF16)
    assert plan.has_cast and "resident_shard" not in [r.name for r in plan.arena.regions]
    check(plan, 4)


@pytest.mark.parametrize("topo", ["1x1", "1x3", "2x1", "2x2", "3x2", "5x1", "4x3"])
@pytest.mark.parametrize("lowering", Lowering)
@pytest.mark.parametrize("accumulate", [False, True])
def test_every_output_is_the_exact_sum(topo, lowering, accumulate):
    check(planned(topo, SHAPES, REDUCE, lowering=lowering, frozen=(2,)), 5, accumulate)


@pytest.mark.parametrize("knobs", [("W=1",), ("W=2", "n_stg=1"), ("n_part=2",), ("n_part=3", "n_out=4"), ("n_out=3", "n_stg=3"), ("W=1", "k=1", "n_out=1", "n_part=2")])
@pytest.mark.parametrize("topo", ["1x2", "4x2"])
def test_knobs_do_not_change_the_sum(topo, knobs):
    check(planned(topo, ((40, 3), (5, 4), (3,)), REDUCE, *knobs), 6, accumulate=True)


@pytest.mark.parametrize("dtype", [Dtype.FP32, Dtype.FP16])
def test_gradients_of_other_types_are_summed(dtype):
    check(planned("2x2", SHAPES, REDUCE, stored=dtype), 7)


def test_a_read_names_the_whole_landing_and_a_free_whole_tensors():
    for collective in Collective:
        plan = planned("2x2", SHAPES, collective)
        sizes = {x.bytes for r in range(plan.ranks) for s in plan.steps(r) if s.kind is OpKind.READ for x in s.extents}
        assert sizes == ({plan.layout.landing_bytes} if collective is GATHER else set())
        freed = [x for s in plan.steps(0) if s.kind is OpKind.FREE for x in s.extents]
        tensors = [p.real_elems * p.item_bytes for p in plan.layout.params if p.real_elems]
        assert [(x.place.offset, x.bytes) for x in freed] == [(0, n) for n in (tensors if collective is REDUCE else [plan.layout.shard_bytes])]


def test_steps_of_a_real_block_come_fast():
    group = load_groups(ROOT / "examples" / "llama70b.json").groups[1]
    plans = [lower(Ask(parse_topology("8x8"), group, Lowering.P2P, parse_knobs((), 8, nodes=8)), c) for c in Collective]
    start = time.perf_counter()
    counts = [sum(1 for r in range(64) for _ in plan.steps(r)) for plan in plans]
    assert time.perf_counter() - start < 4.0 and all(x > 64 * 100 for x in counts)


def test_the_host_issues_one_walk_over_all_streams():
    # Five nodes and an outbox of two blocks: level 1 sums the third and fourth block inside the rounds of the network phase.
    steps = list(planned("5x2", SHAPES, REDUCE, "n_out=2").steps(0))
    net = [i for i, s in enumerate(steps) if s.stream == "net"]
    assert [s.kind for s in steps[net[0] : net[-1]] if s.stream == "sum"].count(OpKind.SUM) == 2
