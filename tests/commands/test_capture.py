"""The groups of the model that a script trains, without running it to its end."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from tidec.commands.capture import _ranks_text

TRAIN = """\
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed import init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import beside

init_process_group("nccl")
assert dist.get_world_size() == 6 and dist.get_rank() == 0 and sys.argv[1:] == ["--rows", "5"], sys.argv
model = beside.build(int(sys.argv[2]))
mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=("replicate", "shard"))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
print("built")
try:
    model(torch.ones(1, 4))
except Exception:
    pass
open("ran", "w")
"""
BESIDE = """\
from torch import nn

def build(rows):
    return nn.Sequential(nn.Linear(4, rows), nn.Linear(rows, 3))
"""


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str) -> Path:
        (tmp_path / "beside.py").write_text(BESIDE)
        (tmp_path / "train.py").write_text(text)
        return tmp_path / "train.py"

    return write


def test_a_script_is_stopped_at_its_first_forward_pass(told, script, tmp_path, golden):
    text = told("capture", script(TRAIN), "-o", tmp_path / "g.json", "--world", "6", "--", "--rows", "5")
    golden("cli/capture.txt", text)
    assert not Path("ran").exists() and told("why-not", "--topo", "2x3", "--group", tmp_path / "g.json").endswith("of all 2 groups\nexit 0\n")
    golden("cli/capture-exists.txt", told("capture", tmp_path / "train.py", "-o", tmp_path / "g.json"))


def test_a_script_behind_a_link_finds_what_lies_beside_it(told, script, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "run.py").symlink_to(script(TRAIN))
    assert told("capture", tmp_path / "bin" / "run.py", "-o", tmp_path / "g.json", "--world", "6", "--", "--rows", "5").endswith("exit 0\n")


def test_a_parameter_on_dimension_1_is_seen_by_why_not(told, script, tmp_path):
    sharded = TRAIN.replace("fully_shard(layer, mesh=mesh)", "fully_shard(layer, mesh=mesh, shard_placement_fn=lambda p: Shard(1) if p.shape == (3, 6) else None)")
    file = script("from torch.distributed.tensor import Shard\n" + sharded.replace('"5"', '"6"'))
    assert told("capture", file, "-o", tmp_path / "g.json", "--world", "6", "--", "--rows", "6").endswith("exit 0\n")
    text = told("why-not", "--topo", "2x3", "--group", tmp_path / "g.json")
    assert text.endswith("exit 4\n") and 'parameter "weight" is sharded on dimension 1' in text


@pytest.mark.slow
def test_what_a_group_file_cannot_say_is_a_note(told, script, tmp_path, golden):
    file = script("from torch.distributed.fsdp import CPUOffloadPolicy\n" + TRAIN.replace("fully_shard(layer, mesh=mesh)", "fully_shard(layer, mesh=mesh, offload_policy=CPUOffloadPolicy(False))"))
    golden("cli/capture-notes.txt", told("capture", file, "-o", tmp_path / "g.json", "--world", "6", "--", "--rows", "5"))
    content = json.loads(told("capture", file, "--json", "--force", "-o", tmp_path / "g.json", "--world", "6", "--", "--rows", "5").partition("\n")[2].partition("stderr:")[0])
    assert content["schema"] == "tidec.capture/1" and (content["model"], content["groups"], content["total_params"]) == ("Sequential", 2, 43)
    assert [(one["group"], one["code"]) for one in content["stock"]] == [("0", "F104"), ("1", "F104")]


@pytest.mark.slow
def test_a_script_that_fails_says_its_last_line(told, script, tmp_path, golden):
    golden("cli/capture-fails.txt", told("capture", script(TRAIN), "-o", tmp_path / "g.json", "--world", "6"))
    assert not (tmp_path / "g.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name, text", [
    ("ends", "import torch\n"), ("leaves", "import sys\nsys.exit(3)\n"), ("raises", "raise ValueError('no data')\n"), ("syntax", "def f(:\n"),
    ("killed", "import os\nos.kill(os.getpid(), 9)\n"), ("module", "import no_such_module\n"), ("two", TRAIN.partition("model =")[0].replace("import beside", "") +
     "a, b = fully_shard(nn.Linear(2, 2)), fully_shard(nn.LayerNorm(3))\n"),
])
def test_a_script_without_a_model_is_refused(name, text, told, script, tmp_path, golden):
    golden(f"cli/capture-{name}.txt", told("capture", script(text), "-o", tmp_path / "g.json", "--world", "6", "--", "--rows", "5"))


@pytest.mark.slow
def test_a_script_that_ends_before_a_forward_pass_gives_its_one_model(told, script, tmp_path):
    no_forward = TRAIN.partition("try:")[0] + "sys.exit(0)\n"
    assert "Sequential: 2 groups, 43 parameters" in told("capture", script(no_forward), "-o", tmp_path / "g.json", "--world", "6", "--", "--rows", "5")


_CLEANS_UP = {
    "finally": "finally:\n    dist.destroy_process_group()\n", "raises": "finally:\n    raise OSError('no log')\n",
    "swallowed": "except BaseException:\n    dist.destroy_process_group()\n    sys.exit(1)\n",
}


@pytest.mark.parametrize("ends", [pytest.param(ends, marks=() if ends == "finally" else pytest.mark.slow) for ends in _CLEANS_UP])
def test_a_model_is_read_before_the_script_cleans_up(ends, told, script, tmp_path):
    file = script(TRAIN.partition("except Exception")[0] + _CLEANS_UP[ends])
    text = told("capture", file, "-o", tmp_path / "g.json", "--world", "6", "--", "--rows", "5")
    assert "Sequential: 2 groups, 43 parameters" in text and text.endswith("exit 0\n"), text


@pytest.mark.slow
def test_a_model_that_never_runs_outlives_its_process_group(told, script, tmp_path):
    file = script(TRAIN.partition("try:")[0] + "dist.destroy_process_group()\n")
    text = told("capture", file, "-o", tmp_path / "g.json", "--world", "6", "--", "--rows", "5")
    assert "Sequential: 2 groups, 43 parameters" in text and text.endswith("exit 0\n"), text


@pytest.mark.slow
def test_another_model_beside_the_first_is_told(told, script, tmp_path):
    text = told("capture", script(TRAIN.replace('print("built")', "teacher = fully_shard(nn.Linear(2, 2))")), "-o", tmp_path / "g.json", "--world", "6", "--", "--rows", "5")
    assert "note[F001 no-model]: only Sequential, the first that ran, is captured" in text and "1 other module under fully_shard" in text and text.endswith("exit 0\n")


@pytest.mark.slow
def test_a_silent_script_is_stopped(told, script, tmp_path):
    text = told("capture", script("import time\ntime.sleep(60)\n"), "-o", tmp_path / "g.json", "--deadline", "1")
    assert "it ran for 1 second without a forward pass" in text and text.endswith("exit 2\n")


@pytest.mark.parametrize("given, wanted", [
    (["no-such.py"], 'there is no script "no-such.py"'), (["README.md", "--world", "0"], '--world is "0"'), (["README.md", "--deadline", "soon"], '--deadline is "soon"'),
])
def test_a_wrong_call_is_refused_before_anything_runs(given, wanted, told, tmp_path):
    text = told("capture", *given, "-o", tmp_path / "g.json")
    assert "error[P001 usage]: " + wanted in text and text.endswith("exit 2\n")


def test_without_torch_the_extra_is_named(told, script, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    text = told("capture", script(TRAIN), "-o", tmp_path / "g.json")
    assert "tidec[fsdp]" in text and text.endswith("exit 6\n")


def test_arguments_of_the_script_go_behind_a_dash_dash(told, script, tmp_path):
    text = told("capture", script(TRAIN), "-o", tmp_path / "g.json", "--rows", "5")
    assert "error[P001 usage]: unrecognized arguments: --rows 5\n  help: arguments of the script go behind --, last of all: -- --rows 5\n" in text and text.endswith("exit 2\n")


@pytest.mark.parametrize("ranks, wanted", [
    (2, "sharded over 2 ranks: compile with --topo 1x2"), (3, "sharded over 3 ranks: compile with --topo 1x3"),
    (16, "sharded over 16 ranks: compile with --topo 1x16 on one machine, 2x8 on two"),
    (1, "sharded over 1 rank: nothing is gathered; give --world the ranks of the job"),
])
def test_the_topology_of_the_file_is_said(ranks, wanted):
    assert _ranks_text(ranks) == wanted
