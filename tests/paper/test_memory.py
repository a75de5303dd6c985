"""The memory of the paper's analysis (section 5.4), and what plans of its configuration take: eight lanes, bf16, one pass, two staging slots."""
from pathlib import Path

import pytest

from tidec.inputs.ask import Ask, Collective, Mode
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import FULL, Knobs
from tidec.inputs.order import default_order
from tidec.inputs.signature import Dtype, Group, Parameter, load_groups
from tidec.inputs.topology import Topology
from tidec.plan.lower import lower
from tidec.plan.model_arena import lay_model_arena, need_of
from tidec.size.memory import outbox_depth, staging_share
from tidec.size.peak import System, backward_bytes, backward_share, held_by, peak, system_of

# 128 rows of 16 values a rank at 64 nodes: sub-slices are whole, and S is a multiple of everything.
GROUP = Group("g", 1, (Parameter("w", (64 * 8 * 128, 16), Dtype.BF16),))


def plans(mode: Mode, nodes: int):
    """(all-gather, reduce-scatter) with k = 4 and the mode's outbox; in whole staging slots."""
    n_out = FULL if mode is Mode.IN_PLACE else outbox_depth(nodes, 8, 4, 1)
    return (lower(Ask(Topology(nodes, 8), GROUP, Lowering.P2P, Knobs(8, 4, n_out=n_out)), collective) for collective in Collective)


def test_the_bounds_at_64_nodes():
    assert round(float(staging_share(Mode.IN_PLACE, nodes=64, k=4)), 3) == 0.594
    assert round(float(staging_share(Mode.SLOT_REUSE, nodes=64, k=4)), 3) == 0.164


def test_a_layer_s_backward_at_64_nodes():
    assert backward_share(System.STOCK, nodes=64) == backward_share(System.SYMMETRIC, nodes=64) == 4
    assert round(float(backward_share(System.IN_PLACE, nodes=64)), 2) == 3.72
    assert round(float(backward_share(System.SLOT_REUSE, nodes=64)), 2) == 2.29


@pytest.mark.parametrize("mode, share", [(Mode.IN_PLACE, 0.594), (Mode.SLOT_REUSE, 0.164)])
def test_plans_at_64_nodes_keep_the_bounds(mode, share):
    gather, reduce = plans(mode, 64)
    assert reduce.arena.staging_bytes <= staging_share(mode, nodes=64, k=4) * gather.layout.landing_bytes
    assert round(reduce.arena.staging_bytes / gather.layout.landing_bytes, 3) <= share
    live = backward_bytes(system_of(mode), held_by(GROUP, ranks=512), gather_stage_bytes=gather.arena.staging_bytes, reduce_stage_bytes=reduce.arena.staging_bytes)
    # The stage of a plan that casts has M slots, as the analysis counts; this one has M - 1.
    assert live + gather.layout.shard_bytes <= backward_share(system_of(mode), nodes=64) * gather.layout.landing_bytes


def test_in_place_approaches_half_of_the_group_and_slot_reuse_nothing():
    shares = [[staging_share(mode, nodes=m, k=4) for m in (16, 64, 1024)] for mode in Mode]
    assert all(a > b for row in shares for a, b in zip(row, row[1:])) and shares[0][-1] < 0.51 and shares[1][-1] < 0.011


def test_llama_on_64_gpus():
    # Section 7.2: the whole arena is 6.1 GiB, with landings for the vocabulary layers; in place peaks above stock, mostly by the arena. One pass, whole slots.
    topology, signature = Topology(8, 8), load_groups(Path(__file__).parents[2] / "examples" / "llama70b.json")
    needs = [need_of(*(lower(Ask(topology, g, Lowering.P2P, Knobs(8, 4)), collective) for collective in Collective)) for g in signature.groups]
    order, held = default_order(signature), [held_by(g, ranks=64) for g in signature.groups]
    totals = {s: peak(order, held, s).total for s in (System.STOCK, System.SYMMETRIC)}
    for mode in Mode:                                              # at eight nodes two rounds of four are all of the outbox
        arena = lay_model_arena(order, needs, mode=mode)
        assert round(arena.bytes / 2**30, 1) == 6.1
        totals[system_of(mode)] = peak(order, held, system_of(mode), arena_bytes=arena.bytes).total
    assert totals[System.SLOT_REUSE] < totals[System.STOCK] < totals[System.IN_PLACE] and totals[System.STOCK] < totals[System.SYMMETRIC]
