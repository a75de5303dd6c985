"""A topology is a number of like nodes, or it is refused with the numbers that were found."""
import json
import random

import pytest

from tidec.errors import TidecError
from tidec.inputs.topology import MAX_RANKS, Topology, parse_topology, read_topology


def refusal(text: str) -> str:
    with pytest.raises(TidecError) as caught:
        read_topology(text, file="t.json")
    return str(caught.value)


def short_refusal(text: str) -> str:
    with pytest.raises(TidecError) as caught:
        parse_topology(text)
    return str(caught.value)


REFUSED = [
    ('{"ranks": 32, "nodes": 6}', "error[P004 bad-topology]: 32 ranks cannot be divided into 6 nodes"),
    ('{"ranks": 32, "nodes": 2, "lanes": 8}', "error[P004 bad-topology]: 2 nodes of 8 lanes are not 32 ranks"),
    ('{"nodes": 3}', "error[P002 malformed]: a topology needs two of nodes, lanes and ranks"),
    ('{"nodes": 2, "lanes": 2, "rails": [[0, 1]]}', "error[P004 bad-topology]: rails are given for 1 nodes, the topology has 2"),
    ('{"nodes": 2, "lanes": 2, "rails": [[0, 1], [0]]}', "error[P004 bad-topology]: node 1 gives 1 rails for 2 lanes"),
    ('{"nodes": 2, "lanes": 2, "rails": [0, 1]}', "error[P002 malformed]: rails of node 0 is 0, not an array"),
    ('{"nodes": 1, "lanes": 1, "rails": [[-1]]}', "error[P002 malformed]: a rail of node 0 is -1, not an integer from 0 to 65535"),
    ('{"nodes": true, "lanes": 8}', "error[P002 malformed]: nodes is true, not an integer"),
    ('{"nodes": 8.0, "lanes": 8}', "error[P002 malformed]: nodes is 8.0, not an integer"),
    ('{"nodes": 2, "lanes": 2, "nic_gbps": 0}', "error[P002 malformed]: nic_gbps is 0, not more than zero"),
    ('{"nodes": 2, "lanes": 2, "wait_us": -1}', "error[P002 malformed]: wait_us is -1, not zero or more"),
    ('{"nodes": 2, "lanes": 2, "nic_gbps": "50"}', 'error[P002 malformed]: nic_gbps is "50", not a number'),
    ('{"nodes": 2, "lanes": 2, "wait_us": null}', "error[P002 malformed]: wait_us is null, not a number"),
    ('{"nodes": 2, "lanes": 2, "multicast": 1}', "error[P002 malformed]: multicast is 1, not true or false"),
    ('{"nodes": 2, "lanes": 73}', "error[P004 bad-topology]: 73 lanes a node are more than 72"),
    ('{"nodes": 2000000000, "lanes": 8}', "error[P004 bad-topology]: 2000000000 nodes of 8 lanes are more than 2147483647 ranks"),
    ('{"schema": "tidec.topo/2", "nodes": 2, "lanes": 2}', 'error[P002 malformed]: the schema of a topology is "tidec.topo/1"'),
    ("[8, 8]", "error[P002 malformed]: a topology is an array, not an object"),
]
SHORT_REFUSED = [
    ("0x8", "error[P004 bad-topology]: a topology of 0 nodes and 8 lanes has no rank"),
    ("8x0", "error[P004 bad-topology]: a topology of 8 nodes and 0 lanes has no rank"),
    ("8x73", "error[P004 bad-topology]: 73 lanes a node are more than 72"),
    ("300000000x8", "error[P004 bad-topology]: 300000000 nodes of 8 lanes are more than 2147483647 ranks"),
    ("9" * 5000 + "x8", 'error[P004 bad-topology]: "' + "9" * 40 + '" has more than 2147483647 ranks'),
    ("8X8", 'error[P001 usage]: "8X8" is neither NODESxLANES nor a topology file'),
    ("", 'error[P001 usage]: "" is neither NODESxLANES nor a topology file'),
    ("/", 'error[P001 usage]: "/" is neither NODESxLANES nor a topology file'),
]


def test_8x8_is_64_ranks_on_rails_0_to_7():
    topology = parse_topology("8x8")
    assert topology == Topology(8, 8)
    assert (topology.ranks, topology.rails, topology.multicast, str(topology)) == (64, tuple(range(8)), False, "8x8")
    assert topology.nic_gbps is topology.wait_us is topology.sms is None and topology.origin == ""


@pytest.mark.parametrize("text", ["1x1", "1x6", "5x6", "3x4", "7x8", "1024x8", "1x72", f"{MAX_RANKS}x1"])
def test_any_node_count_and_up_to_72_lanes_are_accepted(text):
    assert str(parse_topology(text)) == text


def test_a_file_gives_rates_and_where_they_come_from(tmp_path):
    path = tmp_path / "box.json"
    path.write_text(json.dumps({"schema": "tidec.topo/1", "nodes": 2, "lanes": 3, "rails": [[2, 0, 1]] * 2, "nic_gbps": 47.5, "wait_us": 0,
                                "sms": 132, "multicast": True, "nic_traffic_class": 236, "origin": "measured"}))
    topology = parse_topology(str(path))
    assert topology == Topology(2, 3, rails=(2, 0, 1), nic_gbps=47.5, wait_us=0.0, sms=132, multicast=True, nic_traffic_class=236, origin="measured")
    assert topology.push_gbps is None


def test_two_of_nodes_lanes_and_ranks_give_the_third():
    for seed in range(50):
        rng = random.Random(seed)
        nodes, lanes = rng.randrange(1, 2000), rng.randrange(1, 73)
        sizes = {"nodes": nodes, "lanes": lanes, "ranks": nodes * lanes}
        for left_out in ("nodes", "lanes", "ranks", ""):
            text = json.dumps({key: size for key, size in sizes.items() if key != left_out})
            assert read_topology(text, file="t") == Topology(nodes, lanes), f"seed {seed}: {text}"


def test_lanes_that_share_a_rail_are_accepted_on_all_nodes_alike():
    assert read_topology('{"nodes": 2, "lanes": 4, "rails": [[0, 0, 1, 1], [0, 0, 1, 1]]}', file="t").rails == (0, 0, 1, 1)


def test_ranks_that_lanes_do_not_divide_are_refused_with_both_numbers():
    assert refusal('{"ranks": 32, "lanes": 6}') == """\
error[P004 bad-topology]: 32 ranks cannot be divided into nodes of 6 lanes
  --> t.json:1   {"ranks": 32, "lanes": 6}
  reason: 32 = 5 * 6 + 2
  help: every node has the same number of lanes; give the number of ranks that are in use"""


def test_a_node_with_other_rails_is_refused_with_the_order_found():
    assert refusal('{"nodes": 2, "lanes": 4, "rails": [\n [0, 1, 2, 3],\n [3, 2, 1, 0]\n]}') == """\
error[P004 bad-topology]: node 1 has its rails in another order than node 0
  --> t.json:3   [3, 2, 1, 0]
  reason: node 1 has [3, 2, 1, 0], node 0 has [0, 1, 2, 3]; a put from lane j must reach lane j on one rail
  help: order the GPUs of node 1 like those of node 0, for example with CUDA_VISIBLE_DEVICES"""


def test_an_unknown_key_is_refused_with_the_nearest_one():
    assert refusal('{"nodes": 2,\n "lane": 8}') == """\
error[P003 unknown-key]: a topology has an unknown key "lane"
  --> t.json:2   "lane": 8}
  help: did you mean "lanes"?  the keys of a topology are schema, nodes, lanes, ranks, rails, nic_gbps, push_gbps, sum_gbps_per_cta, land_gbps_per_cta, \
land_cap_gbps, wait_us, sms, multicast, nic_traffic_class, origin
  see: examples/README.md, every key of the input files"""


@pytest.mark.parametrize("text, head", REFUSED)
def test_a_malformed_file_is_refused(text, head):
    assert refusal(text).splitlines()[0] == head


@pytest.mark.parametrize("text, head", SHORT_REFUSED)
def test_a_text_that_is_no_topology_is_refused(text, head):
    assert short_refusal(text).splitlines()[0] == head


@pytest.mark.parametrize("given", [
    {"nic_gbps": 0}, {"push_gbps": -1.0}, {"sum_gbps_per_cta": float("nan")}, {"land_gbps_per_cta": float("inf")}, {"land_cap_gbps": "5"}, {"nic_gbps": True},
    {"nic_gbps": 10**400}, {"wait_us": -1}, {"sms": 0}, {"sms": 1.5}, {"sms": 65536}, {"nic_traffic_class": -1}, {"nic_traffic_class": 256},
], ids=str)
def test_numbers_that_python_gives_are_held_to_the_same_ranges_as_those_of_a_file(given):
    ((name, _),) = given.items()
    with pytest.raises(TidecError, match=rf"P004 bad-topology\]: {name} is "):
        Topology(2, 2, **given)
    assert Topology(2, 2, wait_us=0, sms=1, nic_gbps=1, nic_traffic_class=255).wait_us == 0


def test_every_refusal_reads_as_written_down(golden):
    texts = [refusal(text) for text, _ in REFUSED] + [short_refusal(text) for text, _ in SHORT_REFUSED]
    golden("inputs/topology-refused.txt", "\n".join(text + "\n" for text in texts))
