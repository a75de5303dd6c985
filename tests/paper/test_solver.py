"""The paper's numbers of the solver (section 6.3, appendix G) and of the staging that its knobs need (sections 5.4 and 7.4)."""
from fractions import Fraction

import pytest

from tidec.inputs.ask import Mode
from tidec.inputs.topology import Topology
from tidec.size.memory import reduce_staging_bytes
from tidec.size.solver import MAX_SHARDS, solve

MIB = 2**20
PLATFORM = dict(nic_gbps=47.5, sum_gbps_per_cta=99.0, land_gbps_per_cta=21.0, land_cap_gbps=90.0, wait_us=1300.0)
# P = 16 equal bf16 gradients: an output of 32 or 128 MiB is so many fp32 values a rank.
OUTPUTS = {32: 16 * (2 * MIB // 4), 128: 16 * (8 * MIB // 4)}


def knobs_of(nodes: int, elems: int, mode: Mode = Mode.IN_PLACE):
    return solve(Topology(nodes, 8, **PLATFORM), packed_elems=elems, grad_item_bytes=2, mode=mode).knobs


def shards(nodes: int, elems: int, mode: Mode) -> Fraction:
    """Staging of a reduce-scatter in fp32 output shards."""
    return Fraction(reduce_staging_bytes(elems, nodes=nodes, lanes=8, knobs=knobs_of(nodes, elems, mode), grad_item_bytes=2), 4 * elems)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("output", OUTPUTS)
def test_eight_nodes_take_rounds_of_four_four_sum_ctas_and_four_landing_ctas(output, mode):
    knobs = knobs_of(8, OUTPUTS[output], mode)
    assert (knobs.k, knobs.ctas_sum, knobs.ctas_land) == (4, 4, 4)


def test_equation_13_by_hand():
    # 1.5 * (8*2/4 + 1) * 47.5 / 99 = 3.598..., and with fp32 gradients 1.5 * 9 * 47.5 / 99 = 6.477...
    topology = Topology(8, 8, **PLATFORM)
    assert [solve(topology, packed_elems=OUTPUTS[32], grad_item_bytes=b).knobs.ctas_sum for b in (2, 4)] == [4, 7]


def test_equation_14_by_hand():
    # S / (0.05 * (M-1) * S / 47.5 * 21) = 45.238... / (M-1), below the ceiling of floor(90 / 21) = 4 from M = 17 on: 2.83, 1.46, 0.71.
    assert [knobs_of(nodes, OUTPUTS[32]).ctas_land for nodes in (2, 12, 17, 32, 64)] == [4, 4, 3, 2, 1]


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("nodes", range(2, 9))
def test_slot_reuse_stages_at_most_21_output_shards_from_two_to_eight_nodes(nodes, output):
    assert shards(nodes, OUTPUTS[output], Mode.SLOT_REUSE) <= MAX_SHARDS == 21


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("nodes", range(2, 9))
def test_in_place_stages_less_than_its_bound_from_two_to_eight_nodes(nodes, output):
    # Eq. 11 with one inbox generation, as M <= W: 2M + 16 shards.
    assert shards(nodes, OUTPUTS[output], Mode.IN_PLACE) <= min(MAX_SHARDS, 2 * nodes + 16)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("mode, most", [(Mode.IN_PLACE, Fraction(594, 1000)), (Mode.SLOT_REUSE, Fraction(164, 1000))])
def test_at_64_nodes_staging_is_below_the_paper_s_share_of_an_unsharded_group(mode, most, output):
    # NS of a bf16 group is N/2 fp32 output shards.
    assert shards(64, OUTPUTS[output], mode) / Fraction(64 * 8, 2) <= most


def test_small_chunks_lower_in_place_to_146_output_shards():
    # 2*63 outbox blocks, 2 spares, 16 inbox blocks and two shards of slots: 146 of 256, or 0.570. Without any slots it would be the paper's 0.56.
    assert shards(64, OUTPUTS[128], Mode.IN_PLACE) == 146
