"""A live model under fully_shard gives the group file that the commands read: FSDP2's order, names, shapes and types."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import tidec
from tidec.errors import TidecError
from tidec.inputs.ask import Ask, Collective, stock_cause
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import Knobs
from tidec.inputs.signature import Dtype, canonical_text, load_groups
from tidec.inputs.topology import parse_topology
from tidec.plan.lower import lower
from tidec.run.capture import capture, groups_of, read_group, signature_of, write_groups
from tidec.run.fsdp import signature_for

ROOT = Path(__file__).resolve().parents[2]
MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@pytest.fixture(scope="module", autouse=True)
def four_ranks() -> Iterator[None]:
    """This process is rank 0 of four, and collectives move nothing."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


class Block(nn.Module):
    """A parameter of its own beside children: FSDP2 lists the children's first."""

    def __init__(self, width: int = 6):
        super().__init__()
        self.mod = nn.Parameter(torch.ones(2, width))
        self.lin = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.lin(x)) + self.mod.sum(0)


class Model(nn.Module):
    def __init__(self, *, is_tied: bool = False):
        super().__init__()
        self.emb = nn.Embedding(10, 6)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 10, bias=False)
        if is_tied:
            self.head.weight = self.emb.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.emb(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def sharded(model: nn.Module, **options) -> nn.Module:
    options = {"mesh": init_device_mesh("cpu", (4,)), "mp_policy": MIXED, **options}
    for layer in model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def sharded_rest(model: nn.Module) -> nn.Module:
    """The same where the first block is sharded already."""
    mesh = init_device_mesh("cpu", (4,))
    fully_shard(model.layers[1], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def names(content: dict) -> list[tuple[str, list[str]]]:
    return [(g["name"], [p["name"] for p in g["params"]]) for g in content["groups"]]


def test_a_model_of_two_blocks_is_three_groups():
    content = capture(sharded(Model()))
    assert content["schema"] == "tidec.group/1" and content["model"] == "Model" and content["total_params"] == 60 + 2 * 60 + 12 + 60
    block = [{"name": "lin.weight", "shape": [6, 6], "dtype": "fp32"}, {"name": "lin.bias", "shape": [6], "dtype": "fp32"},
             {"name": "norm.weight", "shape": [6], "dtype": "fp32"}, {"name": "mod", "shape": [2, 6], "dtype": "fp32"}]
    own = {"param_dtype": "bf16", "reduce_dtype": "fp32"}
    assert content["groups"][1:] == [{"name": f"layers.{i}", **own, "params": block} for i in range(2)]
    assert names(content)[0] == ("root", ["emb.weight", "norm.weight", "norm.bias", "head.weight"])


def test_offsets_follow_the_order_in_which_fsdp2_gathers():
    """pytorch#114299 (row 85): children come before a parameter of the block's own, which named_parameters lists first. Of 4 ranks, in bf16."""
    model = sharded(Model())
    assert [name for name, _ in model.layers[0].named_parameters()] == ["mod", "lin.weight", "lin.bias", "norm.weight"]
    block = signature_of(model).groups[1]
    plan = lower(Ask(parse_topology("1x4"), block, Lowering.P2P, Knobs(W=4, k=1)), Collective.ALL_GATHER)
    # Shards of 2 x 6, 2, 2 and 1 x 6 values.
    assert [(p.name, p.start_bytes, p.shard_bytes) for p in plan.layout.params] == [("lin.weight", 0, 24), ("lin.bias", 24, 4), ("norm.weight", 28, 4), ("mod", 32, 12)]


def test_names_follow_the_list_that_fsdp2_gathers():
    model = sharded(Model())
    for live, group in zip(groups_of(model), signature_of(model).groups, strict=True):
        assert [tuple(p._orig_size) for p in live.group.fsdp_params] == [p.shape for p in group.params] and live.name == group.name
    model._get_fsdp_state()._lazy_init()
    assert [live.group for live in groups_of(model)] == [g for s in model._get_fsdp_state()._state_ctx.all_states for g in s._fsdp_param_groups]
    for live in groups_of(model):
        at = "" if live.name == "root" else live.name + "."
        assert [at + name for name in live.params] == [p._param_fqn for p in live.group.fsdp_params]


def test_the_first_forward_pass_changes_no_word():
    model = sharded(Model())
    before = capture(model)
    model(torch.zeros(3, dtype=torch.long)).float().sum().backward()
    assert capture(model) == before


def test_a_model_on_the_meta_device_gives_the_same_file():
    with torch.device("meta"):
        model = Model()
    assert capture(sharded(model)) == capture(sharded(Model()))


def test_blocks_of_one_shape_have_one_plan():
    groups = signature_of(sharded(Model())).groups
    assert canonical_text(groups[1]) == canonical_text(groups[2]) != canonical_text(groups[0])


def test_the_file_is_what_the_commands_read(tmp_path):
    model = sharded(Model(is_tied=True))
    write_groups(tidec.capture(model), tmp_path / "g.json")
    read = load_groups(tmp_path / "g.json")
    assert read.groups == signature_of(model).groups and json.loads((tmp_path / "g.json").read_text()) == capture(model)
    assert [p.name for p in tmp_path.iterdir()] == ["g.json"]
    with pytest.raises(TidecError, match="E003"):
        write_groups(capture(model), tmp_path / "no" / "g.json")


def test_a_captured_model_is_compiled_to_the_bundle_that_install_makes(tmp_path):
    pytest.importorskip("z3")
    from tidec import pipeline

    model = sharded(Model())
    write_groups(capture(model), tmp_path / "model.json")
    captured, plain = load_groups(tmp_path / "model.json"), tmp_path / "plain.json"
    plain.write_text((tmp_path / "model.json").read_text().replace(' "install": true,\n', ""))
    made = [pipeline.compile(parse_topology("1x4"), signature, out=tmp_path / f"b{i}", is_echoed=False).bundle
            for i, signature in enumerate((signature_for(groups_of(model)), captured, load_groups(plain)))]
    assert made[0].digest == made[1].digest != made[2].digest
    gathers = {p.groups[0]: p for p in made[1].plans if p.collective is Collective.ALL_GATHER}
    assert [(name, p.has_cast, p.landings) for name, p in gathers.items()][:2] == [("root", False, 1), ("layers.0", False, 2)]
    assert {p.groups for p in made[1].plans if p.collective is Collective.REDUCE_SCATTER and p.gradient_dtype is Dtype.FP32} == {("root.kept",), ("layers.0.kept", "layers.1.kept")}
    assert all(p.has_cast and p.landings == 2 for p in made[2].plans if p.collective is Collective.ALL_GATHER), "a file that does not say so is planned as it is"


def test_a_tied_tensor_is_one_parameter_with_two_names():
    root = capture(sharded(Model(is_tied=True)))["groups"][0]
    assert root["params"][0] == {"name": "emb.weight", "shape": [10, 6], "dtype": "fp32", "tied_to": ["head.weight"]} and len(root["params"]) == 3


def test_a_tied_name_that_a_block_has_too_is_told_apart():
    model = Model(is_tied=True)
    model.layers[0].head = nn.Linear(6, 6, bias=False)
    content = capture(sharded(model))
    assert "head.weight" in dict(names(content))["layers.0"] and content["groups"][0]["params"][0]["tied_to"] == ["Model.head.weight"]


def test_a_module_with_two_names_is_named_where_its_group_is():
    model = Model()
    model.emb.first = model.layers[1].lin       # reached before the block is
    fully_shard(model.layers[1], mesh=init_device_mesh("cpu", (4,)))
    (group,) = capture(model)["groups"]
    lin = group["params"][0]
    assert group["name"] == "layers.1" and (lin["name"], lin["tied_to"]) == ("lin.weight", ["emb.first.weight"])


def test_a_tensor_that_two_groups_share_is_refused_by_fsdp2_itself():
    model = Model()
    model.layers[1].lin.weight = model.layers[0].lin.weight
    with pytest.raises((ValueError, AssertionError)):
        sharded(model)._get_fsdp_state()._lazy_init()


def test_a_frozen_parameter_and_its_type_are_told():
    model = Model()
    model.layers[0].lin.weight.requires_grad_(False)
    model = sharded(model.to(torch.bfloat16))
    lin = capture(model)["groups"][1]["params"][0]
    assert lin == {"name": "lin.weight", "shape": [6, 6], "dtype": "bf16", "requires_grad": False}


def test_a_parameter_sharded_on_dimension_1_keeps_its_dimension():
    model = Model()
    model.emb = nn.Embedding(10, 8)
    options = {"mesh": init_device_mesh("cpu", (4,)), "shard_placement_fn": lambda p: Shard(1) if p.shape == (10, 8) else None}
    fully_shard(model, **options)
    group = signature_of(model).groups[0]
    assert [p.shard_dim for p in group.params] == [1] + [0] * (len(group.params) - 1)
    assert "sharded on dimension 1" in stock_cause(group, Collective.ALL_GATHER).reason


@pytest.mark.parametrize("policy, stored, want", [
    (MixedPrecisionPolicy(), torch.float32, Dtype.FP32), (MixedPrecisionPolicy(), torch.bfloat16, Dtype.BF16),
    (MixedPrecisionPolicy(param_dtype=torch.bfloat16), torch.float32, Dtype.BF16),
    (MixedPrecisionPolicy(reduce_dtype=torch.float32), torch.bfloat16, Dtype.FP32),
    (MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16), torch.float32, Dtype.BF16),
])
def test_gradients_are_summed_in_what_fsdp2_sums_them_in(policy, stored, want):
    model = sharded(Model().to(stored), mp_policy=policy)
    assert {g.reduce_dtype for g in signature_of(model).groups} == {want}
    model._get_fsdp_state()._lazy_init()
    of = {torch.float32: Dtype.FP32, torch.bfloat16: Dtype.BF16}
    for live in groups_of(model):
        p = live.group.fsdp_params[0]
        assert of[live.group._reduce_dtype or p.param_dtype or p.orig_dtype] is want


def test_from_torch_2_15_on_the_default_is_the_stored_type():
    (_, live, _) = groups_of(sharded(Model(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16)))
    assert read_group(live).reduce_dtype is Dtype.BF16
    names = ("sharded_param", "_orig_size", "fsdp_placement")
    later = [SimpleNamespace(**{name: getattr(p, name) for name in names}) for p in live.group.fsdp_params]     # it accumulates no gradient itself
    assert read_group(replace(live, group=SimpleNamespace(fsdp_params=later, mp_policy=live.group.mp_policy))).reduce_dtype is Dtype.FP32


def test_torch_2_11_has_one_group_a_state_or_none():
    model = sharded(Model())
    want = capture(model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state, old = module._get_fsdp_state(), SimpleNamespace()
            old._fsdp_param_group = state._fsdp_param_groups[0]
            module._get_fsdp_state = lambda old=old: old
    assert capture(model) == want
    model._get_fsdp_state = lambda: SimpleNamespace(_fsdp_param_group=None)
    assert [name for name, _ in names(capture(model))] == ["layers.0", "layers.1"]


def test_a_state_or_a_group_that_is_odd_is_named():
    model = sharded(Model())
    model.layers[0]._get_fsdp_state = lambda: SimpleNamespace(_fsdp_param_groups=[SimpleNamespace(modules=(model.layers[0],), parameters=[])])
    assert [live.name for live in groups_of(model)] == ["root", "group 1", "layers.1"] and "'fsdp_params'" in groups_of(model)[1].odd
    with pytest.raises(TidecError, match="F110 odd-object.*\n.*'fsdp_params'"):
        capture(model)
    model.layers[0]._get_fsdp_state = lambda: SimpleNamespace()
    with pytest.raises(TidecError, match="F110 odd-object.*\n.*'_fsdp_param_group'"):
        groups_of(model)


def test_wrappers_of_checkpointing_and_compilation_leave_no_trace():
    plain, wrapped = Model(), Model()
    wrapped.layers[0] = checkpoint_wrapper(wrapped.layers[0])
    wrapped.layers[1].lin = nn.Module()     # as torch.compile leaves it
    wrapped.layers[1].lin.add_module("_orig_mod", nn.Linear(6, 6))
    assert capture(sharded(wrapped)) == capture(sharded(plain))


def test_two_modules_in_one_group_have_both_names():
    model = Model()
    options = {"mesh": init_device_mesh("cpu", (4,)), "mp_policy": MIXED}
    fully_shard([model.norm, model.head], **options)
    content = capture(sharded(model))
    assert names(content)[-1] == ("norm, head", ["norm.weight", "norm.bias", "head.weight"])


def test_a_root_without_fully_shard_has_the_groups_of_its_blocks():
    model = Model()
    for layer in model.layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (4,)))
    assert [name for name, _ in names(capture(model))] == ["layers.0", "layers.1"]


def test_a_group_of_another_mesh_says_so():
    model = Model()
    meshes = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    fully_shard(model.layers[0].lin, mesh=meshes["ep"])
    group = signature_of(sharded(model)).groups[2]
    assert group.name == "layers.0.lin"
    assert json.loads(group.mesh) == {"dims": [["ep", 2]], "shard": 0}
    assert all(not g.mesh for g in signature_of(sharded(Model(), mesh=meshes)).groups)


def test_two_meshes_in_one_module_are_two_groups():
    meshes = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    experts = ShardPlacementResult(Shard(0), FSDPMeshInfo(meshes["ep"], shard_mesh_dim=0))
    model = Model()
    fully_shard(model.layers[0], mesh=init_device_mesh("cpu", (4,)), shard_placement_fn=lambda p: experts if p.ndim == 1 else None)
    content = capture(sharded_rest(model))
    assert names(content)[1:3] == [("layers.0 [0]", ["lin.weight", "mod"]), ("layers.0 [1]", ["lin.bias", "norm.weight"])]
    assert ["mesh" in g for g in content["groups"]] == [False, False, True, False]


def test_a_model_that_is_not_sharded_is_refused():
    with pytest.raises(TidecError, match="F001"):
        capture(Model())


def test_a_type_without_a_name_is_refused():
    model = Model()
    model.layers[0].table = nn.Parameter(torch.zeros(4, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(TidecError, match='F002 other-dtype.*"table" is int8'):
        capture(sharded(model))


def test_an_ignored_parameter_is_no_parameter_of_the_group():
    model = Model()
    options = {"mesh": init_device_mesh("cpu", (4,))}
    fully_shard(model, ignored_params={model.emb.weight}, **options)
    assert "emb.weight" not in names(capture(model))[0][1] and "head.weight" in names(capture(model))[0][1]


def test_a_transposed_view_never_comes_so_far():
    model = Model()
    model.head.weight = nn.Parameter(torch.ones(6, 10).T)
    with pytest.raises(NotImplementedError):
        sharded(model)
    model = Model()
    model.head.weight = nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError):
        sharded(model)


CAPTURED = """\
import sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
import tidec

rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=3)
with torch.device("meta" if rank == 2 else "cpu"):
    model = nn.Sequential(nn.Linear(5, 2), nn.Linear(2, 7))
model[0].bias.requires_grad_(False)
for layer in model:
    fully_shard(layer)
fully_shard(model)
found = [None] * 3
dist.all_gather_object(found, tidec.capture(model))
assert found[0] == found[1] == found[2] and [g["name"] for g in found[0]["groups"]] == ["0", "1"], found
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_all_ranks_capture_the_same(tmp_path):
    (tmp_path / "rank.py").write_text(CAPTURED)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, tmp_path / "rank.py", str(rank), tmp_path / "store"], env=environment, stderr=subprocess.PIPE, text=True) for rank in range(3)]
    try:
        for rank in ranks:
            error = rank.communicate(timeout=120)[1]
            assert rank.returncode == 0, error
    finally:
        for rank in ranks:
            rank.kill()
