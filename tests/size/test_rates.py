"""Rates are what a topology gives, exactly, and else what was measured, each with its origin."""
from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import pytest

from tidec.inputs.knobs import MAX_CTAS
from tidec.inputs.topology import Topology, parse_topology, read_topology
from tidec.size.rates import PAPER, rates_of

ROOT = Path(__file__).resolve().parent.parent.parent


def test_several_nodes_have_the_paper_s_rates():
    rates = rates_of(Topology(8, 8))
    assert [rates.nic_gbps.value, rates.sum_gbps_per_cta.value, rates.land_gbps_per_cta.value, rates.land_cap_gbps.value] == [Fraction("47.5"), 99, 21, 90]
    assert rates.wait_us.value == 1300 and rates.sms.value == 148
    assert rates.nic_gbps.origin == rates.wait_us.origin == PAPER
    assert rates == rates_of(Topology(64, 2))


def test_one_node_has_no_rail_and_what_a_pair_of_h200s_does():
    rates = rates_of(Topology(1, 2))
    assert rates.nic_gbps.value == rates.push_gbps.value == 395 and rates.sms.value == 132
    assert rates.nic_gbps.origin.startswith("the push rate, as one node has no rail") and "H200" in rates.push_gbps.origin
    assert rates_of(Topology(1, 2, push_gbps=200.5, nic_gbps=10.0)).nic_gbps.value == Fraction("200.5")


def test_a_given_rate_is_its_decimal_digits():
    text = '{"nodes": 8, "lanes": 8, "nic_gbps": 47.6, "wait_us": 0, "sms": 132, "origin": "measured by us"}'
    rates = rates_of(read_topology(text, file="t.json"))
    assert rates.nic_gbps.value == Fraction(476, 10) != Fraction(47.6)
    assert rates.wait_us.value == 0 and rates.sms.value == 132
    for name in ("nic_gbps", "wait_us", "sms"):
        assert getattr(rates, name).is_given and getattr(rates, name).origin == "measured by us"
    assert not rates.push_gbps.is_given


def test_every_rate_says_where_it_comes_from():
    for nodes in (1, 2):
        rates = rates_of(Topology(nodes, 4))
        assert all(getattr(rates, f.name).origin and getattr(rates, f.name).value > 0 for f in fields(rates))


@pytest.mark.parametrize("sms, spare", [(132, 8), (148, 16), (108, 6), (144, 9), (8, 1), (1, 1), (65535, MAX_CTAS)])
def test_ctas_that_leave_a_gemm_in_one_wave(sms, spare):
    assert rates_of(Topology(1, 8, sms=sms)).spare_ctas == spare


def test_the_topologies_of_the_examples_give_rates_with_their_origin():
    paper, h200 = (parse_topology(str(ROOT / "examples" / "topologies" / name)) for name in ("paper-8x8.json", "h200-1x8.json"))
    assert str(paper) == "8x8" and str(h200) == "1x8"
    given, default = rates_of(paper), rates_of(Topology(8, 8))
    assert [getattr(given, f.name).value for f in fields(given)] == [getattr(default, f.name).value for f in fields(default)]
    assert given.nic_gbps.origin == paper.origin and rates_of(h200).spare_ctas == 8 and rates_of(h200).nic_gbps.value == 395
