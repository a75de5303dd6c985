"""A plan is hashed over what it does and nothing else."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.lower import lower

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARAMS = (Parameter("a", (5, 4), Dtype.BF16), Parameter("b", (3,), Dtype.BF16))
GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER


def planned(collective=REDUCE, topo="3x2", group=Group("g", 1, PARAMS), lowering=Lowering.P2P, knobs=()):
    topology = parse_topology(topo)
    return lower(Ask(topology, group, lowering, parse_knobs(knobs, topology.lanes, nodes=topology.nodes)), collective)


@pytest.mark.parametrize("collective", Collective)
def test_groups_that_differ_in_name_and_repeat_have_one_digest(collective):
    one, other = planned(collective), planned(collective, group=Group("h", 80, PARAMS))
    assert (one.groups, other.groups) == (("g",), ("h",)) and one.digest == other.digest and len(one.digest) == 64


def test_whatever_a_plan_does_is_in_its_digest():
    wide = Group("g", 1, (Parameter("a", (5, 5), Dtype.BF16), PARAMS[1]))
    named = Group("g", 1, (Parameter("z", (5, 4), Dtype.BF16), PARAMS[1]))
    frozen = Group("g", 1, (PARAMS[0], Parameter("b", (3,), Dtype.BF16, requires_grad=False)))
    plans = [
        planned(), planned(GATHER), planned(topo="4x2"), planned(topo="2x3"), planned(group=wide), planned(group=named), planned(group=frozen),
        planned(lowering=Lowering.NVLS), planned(knobs=("W=1",)), planned(knobs=("n_part=2",)), planned(knobs=("n_out=2",)), planned(topo="1x2"),
        planned(group=Group("g", 1, PARAMS, param_dtype=Dtype.FP32)),
    ]
    assert len({p.digest for p in plans}) == len(plans)
    # The program is the same for every node count of a branch and for every group.
    assert planned().program_digest == planned(topo="4x2", group=wide).program_digest != planned(topo="1x2").program_digest


def numbers(value):
    if isinstance(value, dict):
        yield from (x for v in value.values() for x in numbers(v))
    elif isinstance(value, list):
        yield from (x for v in value for x in numbers(v))
    else:
        yield value


@pytest.mark.parametrize("collective", Collective)
def test_the_json_is_canonical_and_says_where_everything_lies(collective):
    text = planned(collective).to_json()
    content = json.loads(text)
    assert text == json.dumps(content, sort_keys=True, separators=(",", ":")) and text.isascii()
    assert not any(isinstance(x, float) for x in numbers(content)) and str(ROOT) not in text
    assert (content["schema"], content["nodes"], content["lanes"], content["lowering"]) == ("tidec.plan/1", 3, 2, "p2p")
    assert [(p["name"], p["shard_rows"], p["shard_elems"], p["shard_bytes"], p["start_bytes"]) for p in content["params"]] == [("a", 1, 4, 8, 0), ("b", 1, 1, 2, 8)]
    assert content["sub_slices"] == ({"capacity_elems": 8, "num_chunks": 1, "chunk_elems": 8, "bounds": [[[0, 5], [5, 5]]]})
    assert [r["name"] for r in content["arena"]["regions"]] == (["landing", "resident_shard", "stage"] if collective is GATHER else ["stage", "outbox", "spare", "inbox"])
    assert all(w["kept_by"] for w in content["waits"])
    spots = {x for x in numbers(content["program"]) if isinstance(x, str) and x.startswith("schedules/")}
    assert spots and all(x.split(":")[1].isdigit() for x in spots)


def test_digests_do_not_depend_on_the_hash_seed():
    script = (
        "import runpy, sys; t = runpy.run_path(sys.argv[1]); "
        "print([t['planned'](c, topo=x, knobs=('n_part=2',)).digest for c in t['Collective'] for x in ('1x2', '3x2')])"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", script, __file__], env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}, cwd=ROOT,
                       capture_output=True, text=True, check=True).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(outputs) == 1 and outputs == {f"{[planned(c, topo=x, knobs=('n_part=2',)).digest for c in Collective for x in ('1x2', '3x2')]}\n"}


def test_premises_are_about_the_own_node_count():
    group = Group("g", 1, PARAMS)
    assert planned(topo="8x8", group=group, knobs=("W=3",)).premises_hold
    assert not planned(topo="9x8", group=group, knobs=("W=3",)).premises_hold
    assert planned(topo="9x8", group=group, knobs=("W=4",)).premises_hold
