"""The lowering is the one that was asked for, else the one that the topology has."""
import pytest

from tidec.errors import TidecError
from tidec.inputs.capability import Lowering, choose_lowering
from tidec.inputs.topology import Topology


def test_p2p_unless_the_topology_has_multicast():
    assert choose_lowering(Topology(2, 2)) is Lowering.P2P
    assert choose_lowering(Topology(2, 2, multicast=True)) is Lowering.NVLS


def test_what_is_asked_for_wins():
    assert choose_lowering(Topology(2, 2), "nvls") is Lowering.NVLS
    assert choose_lowering(Topology(2, 2, multicast=True), "p2p") is Lowering.P2P


def test_an_unknown_lowering_is_refused():
    with pytest.raises(TidecError) as caught:
        choose_lowering(Topology(2, 2), "NVLS")
    assert str(caught.value) == """\
error[P001 usage]: there is no capability "NVLS"
  help: write --capability p2p or --capability nvls"""
