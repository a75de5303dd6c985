"""What a plan costs is counted on its folded program, and equals what its steps say one by one."""
import time

import pytest

from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.cost import Cost, cost
from tidec.plan.lower import lower
from tidec.plan.steps import Space
from tidec.schedule.program import OpKind

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
SHAPES = ((5, 4), (3,), (8, 3), (1, 5), (0, 2), (70, 3))


def planned(topo, collective, *knobs, shapes=SHAPES, lowering=Lowering.P2P):
    topology = parse_topology(topo)
    group = Group("g", 1, tuple(Parameter(f"p{i}", s, Dtype.BF16) for i, s in enumerate(shapes)))
    return lower(Ask(topology, group, lowering, parse_knobs(knobs, topology.lanes, nodes=topology.nodes)), collective)


def test_an_all_gather_worked_by_hand():
    # 4x2, two parameters: 3 puts in 2 rounds of 1 and 2 slots; the own shard, the first round's slot and, one by one,
    # the two of the last round: four copies of one descriptor a parameter for each of two lanes.
    assert cost(planned("4x2", GATHER, shapes=((8, 4), (8,)))) == Cost(descriptors=3 + 4 * 2 * 2, rounds=2, waves=0, arena_bytes=512 + 512 + 512, staging_bytes=3 * 10)


def test_a_reduce_scatter_worked_by_hand():
    # 4x2, two waves of W = 2 (three remote contributors and the own one), two puts a round: rounds of 2 and 1. E = 4 + 1 fits the first
    # sub-slice, two runs; lane 0 pushes sub-slice 0 of a node to the other lane where (1 + c) % 2 is 0.
    found = cost(planned("4x2", REDUCE, "W=2", "k=2", shapes=((8, 4), (8,))))
    assert (found.rounds, found.waves, found.descriptors) == (2, 2, 2 * 2)
    assert cost(planned("4x2", REDUCE, "W=2", "k=1", shapes=((8, 4), (8,)))).rounds == 3
    assert cost(planned("4x2", REDUCE, "W=1", "k=1", "n_part=2", shapes=((8, 4), (8,)))).waves == 8


@pytest.mark.parametrize("topo", ["1x1", "1x4", "2x1", "2x3", "5x4", "9x2", "17x1"])
@pytest.mark.parametrize("lowering", Lowering)
@pytest.mark.parametrize("knobs", [(), ("W=1", "n_part=3", "n_out=2")])
def test_counts_are_those_of_the_steps(topo, lowering, knobs):
    for collective in Collective:
        plan = planned(topo, collective, *knobs, lowering=lowering)
        steps = list(plan.steps(0))
        if collective is GATHER:
            descriptors = sum(len(s.moves) for s in steps if s.kind in (OpKind.COPY, OpKind.PUT))
        else:
            descriptors = sum(len(s.moves) for s in steps if s.kind is OpKind.COPY and s.moves and s.moves[0].src.space is Space.GRAD)
        found = cost(plan)
        assert (found.descriptors, found.waves) == (descriptors, sum(s.kind is OpKind.LAND for s in steps))
        assert (found.arena_bytes, found.staging_bytes) == (plan.arena.bytes, plan.arena.staging_bytes)


@pytest.mark.parametrize("nodes, rounds", [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (1024, 10)])
def test_an_all_gather_takes_the_rounds_of_doubling(nodes, rounds):
    assert cost(planned(f"{nodes}x2", GATHER)).rounds == rounds


@pytest.mark.parametrize("topo, k, rounds", [("1x8", 4, 0), ("2x8", 4, 1), ("8x8", 4, 2), ("9x8", 4, 2), ("10x8", 4, 3), ("8x8", 8, 1), ("64x8", 3, 8 * 3)])
def test_a_reduce_scatter_sends_k_blocks_a_round(topo, k, rounds):
    # Waves of 8 contributors take ceil(8/k) rounds; the last wave of 64 nodes has seven, and takes as many.
    assert cost(planned(topo, REDUCE, f"k={k}")).rounds == rounds


def test_a_thousand_nodes_are_counted_fast():
    plans = [planned("1024x8", c, shapes=tuple((1024 * 8 * 5 + 3 * i, 8) for i in range(200))) for c in Collective]
    start = time.perf_counter()
    found = [cost(p) for p in plans]
    assert time.perf_counter() - start < 1.0
    assert found[0].rounds == 10 and found[1].waves == 128
