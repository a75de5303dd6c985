"""Every attribute that tidec reads of FSDP2's objects is looked at where a model is installed: one that is missing leaves its group stock, by its name."""
from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import tidec
from tidec.run.capture import groups_of
from tidec.run.fallback import why_stock
from tidec.run.fsdp import HOOKS
from tidec.run.versions import FUNCTIONS, GROUP_READS, LATE_PARAM_READS, PARAM_READS

ROOM = Path(__file__).resolve().parents[2] / "tidec" / "run"
READERS = ("capture.py", "fallback.py", "fsdp.py", "held.py", "hooks.py", "reduce.py")
# How those files call an FSDPParamGroup, and an FSDPParam.
GROUP = re.compile(r"(\w+\.)?group|group_of\(\)")
PARAM = re.compile(r"p|(\w+\.)*(fsdp_)?params\[\w+\]")
# What else they call group or p, with what is read of that: process groups, groups of a group file, rows of a layout, loops over plans.
OTHERS = {"group": {"size", "items", "landings", "mesh", "name", "param_dtype", "params", "reduce_dtype"},
          "p": {"dtype", "elems", "item_bytes", "name", "packed_elems", "ranks", "nodes", "lanes", "requires_grad", "shape", "shard_dim", "tied_to", "is_trainable", "real_elems",
                "collective", "arena", "shard_elems"}}


@pytest.fixture(scope="module", autouse=True)
def four_ranks() -> Iterator[None]:
    """This process is rank 0 of four, and collectives move nothing."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def sharded(*, has_run: bool = False) -> nn.Module:
    model = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (4,)), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    if has_run:
        model._get_fsdp_state()._lazy_init()
    return model


def take_out(made: object, name: str) -> None:
    """Have an object of FSDP2's lack an attribute, as where a version of torch has another name for it."""
    def read(self, key: str) -> object:
        if key == name:
            raise AttributeError(f"'{kind.__name__}' object has no attribute '{key}'")
        return object.__getattribute__(self, key)

    kind = type(made)
    made.__class__ = type(f"Without_{name}", (kind,), {"__getattribute__": read, "__annotations__": {}})


def reads(source: str, spelt: re.Pattern[str]) -> set[str]:
    """What a source reads of the names of a pattern, by a dot or by getattr."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and spelt.fullmatch(ast.unparse(node.value)):
            found.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr") and spelt.fullmatch(ast.unparse(node.args[0])) and isinstance(node.args[1], ast.Constant):
            found.add(node.args[1].value)
    return found


def test_the_reader_of_sources_sees_a_dot_and_a_name():
    source = "self.group.a; live.group.b.c; f(getattr(self.group, 'd', None)); other.groups.e\nfor p in x: p.f()\nself.group.fsdp_params[i].g; params[0].h"
    assert reads(source, GROUP) == {"a", "b", "d", "fsdp_params"} and reads(source, PARAM) == {"f", "g", "h"}


@pytest.mark.parametrize("file", READERS)
def test_what_a_file_reads_of_fsdp2s_objects_is_in_the_list(file):
    source = (ROOM / file).read_text()
    assert reads(source, GROUP) - OTHERS["group"] <= {*GROUP_READS, *FUNCTIONS}
    assert reads(source, PARAM) - OTHERS["p"] <= {*PARAM_READS, *LATE_PARAM_READS}


def test_the_list_holds_nothing_that_nobody_reads():
    sources = [(ROOM / file).read_text() for file in READERS]
    assert set(GROUP_READS) <= set().union(*(reads(source, GROUP) for source in sources))
    assert {*PARAM_READS, *LATE_PARAM_READS} <= set().union(*(reads(source, PARAM) for source in sources))


def install_of(model: nn.Module, monkeypatch) -> tuple[str, ...]:
    """Why the groups of a model stay stock where it is installed."""
    monkeypatch.setattr(dist, "all_gather_object", lambda found, mine, **_: found.__setitem__(slice(None), [mine] * len(found)))
    tidec.install(model)
    reasons = tuple(g.reason for g in tidec.report(model).groups)
    assert HOOKS.num_models == 0
    tidec.uninstall(model)
    return reasons


@pytest.mark.parametrize("name", GROUP_READS)
def test_a_group_that_lacks_one_stays_stock(name, monkeypatch):
    model = sharded()
    assert why_stock(groups_of(model)[0]) == ()
    (group,) = model._get_fsdp_state()._fsdp_param_groups
    take_out(group, name)
    (reason,) = install_of(model, monkeypatch)
    assert reason.startswith("F110") and f"'{name}'" in reason


@pytest.mark.parametrize("name", PARAM_READS)
def test_a_parameter_that_lacks_one_leaves_its_group_stock(name, monkeypatch):
    model = sharded()
    (group,) = model._get_fsdp_state()._fsdp_param_groups
    take_out(group.fsdp_params[1], name)
    (reason,) = install_of(model, monkeypatch)
    assert reason.startswith("F110") and f"'{name}'" in reason


@pytest.mark.parametrize("name", LATE_PARAM_READS)
def test_what_a_parameter_gets_late_is_looked_at_where_it_has_it(name, monkeypatch):
    model = sharded(has_run=True)
    assert why_stock(groups_of(model)[0]) == ()
    (group,) = model._get_fsdp_state()._fsdp_param_groups
    take_out(group.fsdp_params[0], name)
    (reason,) = install_of(model, monkeypatch)
    assert reason.startswith("F110") and f"'{name}'" in reason
    early = sharded()
    (group,) = early._get_fsdp_state()._fsdp_param_groups
    assert not hasattr(group.fsdp_params[0], name) and why_stock(groups_of(early)[0]) == ()
