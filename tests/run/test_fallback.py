"""Every reason for which a group stays stock has its case here, and what is no such reason is planned."""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import tidec
from tidec.errors import CODES, Exit, TidecError
from tidec.inputs.ask import Collective
from tidec.run import versions
from tidec.run.capture import LiveGroup, groups_of
from tidec.run.fallback import REASONS, because, later_line, line, of_collective, refusal, require, why_stock
from tidec.run.versions import FUNCTIONS, GROUP_READS

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@pytest.fixture(scope="module", autouse=True)
def four_ranks() -> Iterator[None]:
    """This process is rank 0 of four, and collectives move nothing."""
    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def live(model: nn.Module | None = None, shard=fully_shard, **options) -> LiveGroup:
    """The one group of a model of a 4 x 4 weight and a bias."""
    model = nn.Linear(4, 4) if model is None else model
    shard(model, **{"mesh": init_device_mesh("cpu", (4,)), "mp_policy": MIXED, **options})
    (found,) = groups_of(model)
    return found


def codes(group: LiveGroup, **options) -> list[tuple[str, tuple[Collective, ...]]]:
    return [(r.code, r.collectives) for r in why_stock(group, **options)]


BOTH = (GATHER, REDUCE)


def test_a_plain_group_has_no_reason():
    assert why_stock(live()) == ()
    assert why_stock(live(mp_policy=MixedPrecisionPolicy())) == ()
    assert why_stock(live(reshard_after_forward=False)) == ()
    assert why_stock(live(mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))) == ()


def test_the_first_forward_pass_adds_no_reason():
    model = nn.Linear(4, 4)
    group = live(model)
    model(torch.ones(1, 4)).sum().backward()
    assert why_stock(group) == ()


def test_what_the_planner_refuses_is_told_as_why_not_tells_it():
    assert codes(live(shard_placement_fn=lambda p: Shard(1) if p.ndim == 2 else None)) == [("P012", BOTH)]
    assert codes(live(mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))) == [("P012", (REDUCE,))]
    assert codes(live(mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16))) == [("P012", (REDUCE,))]
    model = nn.Linear(4, 4)
    model.bias.requires_grad_(False)
    model.bias.data = model.bias.data.bfloat16()
    (reason,) = why_stock(live(model, mp_policy=MixedPrecisionPolicy()))
    assert reason.collectives == (GATHER,) and "gathered in different types" in reason.reason
    for p in model.parameters():
        p.requires_grad_(False)
    assert ("P012", (REDUCE,)) in codes(groups_of(model)[0])


def test_more_trainable_parameters_than_a_plan_holds_stay_stock():
    experts = nn.Sequential(*(nn.Linear(2, 1) for _ in range(131)))
    (reason,) = why_stock(live(experts))
    assert reason.code == "P012" and "262 > 256" in reason.reason


def test_a_type_without_a_plan_stays_stock():
    model = nn.Linear(4, 4)
    model.table = nn.Parameter(torch.zeros(4, dtype=torch.int8), requires_grad=False)
    (reason,) = why_stock(live(model))
    assert reason.code == "P012" and reason.reason.startswith('parameter "table" is int8')


def test_a_replicated_group_and_one_of_one_rank_gather_nothing():
    assert codes(live(shard=replicate)) == [("F101", BOTH)]
    (reason,) = why_stock(live(mesh=init_device_mesh("cpu", (4, 1), mesh_dim_names=("replicate", "shard"))))
    assert str(reason) == "F101 it is sharded over one rank, so there is nothing to gather"


def test_a_tensor_parallel_parameter_stays_stock():
    meshes = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Linear(4, 4)
    model.weight = nn.Parameter(distribute_tensor(model.weight, meshes["tp"], [Shard(0)]))
    (reason,) = why_stock(live(model, mesh=meshes["dp"]))
    assert reason.code == "F102" and 'parameter "weight" is a DTensor' in reason.reason


def test_an_offloaded_parameter_stays_stock():
    assert codes(live(offload_policy=CPUOffloadPolicy(pin_memory=False))) == [("F104", BOTH)]


def test_a_parameter_with_its_own_step_before_the_all_gather_stays_stock():
    group = live()
    group.group.fsdp_params[1]._sharded_local_tensor.fsdp_pre_all_gather = lambda *args: None
    (reason,) = why_stock(group)
    assert reason.code == "F103" and 'parameter "bias"' in reason.reason


def test_a_smaller_mesh_after_forward_keeps_the_stock_all_gather():
    (reason,) = why_stock(live(reshard_after_forward=2))
    assert (reason.code, reason.collectives) == ("F105", (GATHER,)) and "resharded to 2 ranks" in reason.reason


def test_the_users_own_communication_is_left_alone():
    class Mine(DefaultAllGather):
        pass

    class Theirs(DefaultReduceScatter):
        pass

    model = nn.Linear(4, 4)
    group = live(model)
    model.set_custom_all_gather(Mine())
    assert codes(group) == [("F106", (GATHER,))]
    model.set_custom_reduce_scatter(Theirs())
    assert codes(group) == [("F106", (GATHER,)), ("F107", (REDUCE,))]


@pytest.mark.parametrize("slot, default, code, collectives", [
    ("_all_gather_output_fn", "_default_all_gather_output_fn", "F106", (GATHER,)), ("_prepare_reduce_scatter_inputs", "_default_reduce_scatter_input_fn", "F107", (REDUCE,)),
])
def test_a_function_of_the_users_own_is_left_alone(slot, default, code, collectives, monkeypatch):
    """torch 2.15 has two functions a group that somebody may replace; a group that then lacks one is odd."""
    monkeypatch.setattr(versions._fsdp_collectives, default, print, raising=False)
    for other in set(FUNCTIONS.values()) - {default}:
        monkeypatch.delattr(versions._fsdp_collectives, other, raising=False)
    group = live()
    if not hasattr(group.group, slot):
        (reason,) = why_stock(group)
        assert reason.code == "F110" and f"'{slot}'" in reason.reason
    setattr(group.group, slot, print)
    assert why_stock(group) == ()
    setattr(group.group, slot, sorted)
    (reason,) = why_stock(group)
    assert (reason.code, reason.collectives) == (code, collectives) and reason.reason.endswith("an object of the user's own, sorted")


def test_another_device_than_the_targets_stays_stock():
    group = live()
    group.group.device = torch.device("cuda")
    (reason,) = why_stock(group)
    assert str(reason) == "F108 its parameters are on cuda, and target host moves those of cpu"


def test_a_parameter_gathered_in_a_type_of_its_own_stays_stock():
    model = nn.Linear(4, 4)
    group = live(model)
    model._get_fsdp_state()._lazy_init()
    group.group.fsdp_params[1].param_dtype = torch.float16
    (reason,) = why_stock(group)
    assert str(reason) == 'F109 parameter "bias" is gathered in float16, where the policy of its module says bfloat16'


def test_several_reasons_are_all_told():
    found = codes(live(offload_policy=CPUOffloadPolicy(pin_memory=False), reshard_after_forward=2, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)))
    assert [code for code, _ in found] == ["P012", "F105", "F104"]


# ---- objects that are not as FSDP2 makes them

def likeness(group: object, **others: object) -> SimpleNamespace:
    """The attributes of a group that are read, without FSDP2's class."""
    return SimpleNamespace(**{name: getattr(group, name) for name in GROUP_READS}, **others)


@pytest.mark.parametrize("odd", [None, 3, object(), SimpleNamespace(), SimpleNamespace(size=None)])
def test_a_process_group_without_a_method_is_no_crash(odd):
    whole = live()
    group = likeness(whole.group)
    group.mesh_info = SimpleNamespace(shard_process_group=odd)
    assert [r.code for r in why_stock(replace(whole, group=group))] == ["F101" if odd is None else "F110"]
    assert why_stock(replace(whole, group=odd))[0].code == "F110"


@pytest.mark.parametrize("problem", [
    NotImplementedError("allgather"), AttributeError("'Backend' object has no attribute 'allgather'"), RuntimeError("Backend mine does not support allgather"),
    RuntimeError("No backend type associated with device type cpu")], ids=lambda p: type(p).__name__)
def test_a_backend_without_a_method_leaves_all_stock(problem, monkeypatch, capsys):
    """pytorch#191951 (row 43): the ranks cannot agree on anything, so nothing is changed; a rank that is gone is another matter."""
    def all_gather_object(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr(dist, "all_gather_object", all_gather_object)
    model = nn.Linear(4, 4)
    live(model)
    tidec.install(model)
    (group,) = tidec.report(model).groups
    assert group.reason == f"F308 its process group cannot carry what ranks tell each other: {type(problem).__name__}: {problem}"
    assert f'tidec: group "root" stock: {group.reason}' in capsys.readouterr().err
    tidec.uninstall(model)
    with pytest.raises(TidecError, match="F308"):
        tidec.install(model, require=True)
    problem = RuntimeError("Connection closed by peer")
    with pytest.raises(RuntimeError, match="closed by peer"):
        tidec.install(model)


def test_a_group_whose_names_cannot_be_read_stays_stock():
    model = nn.Linear(4, 4)
    live(model)
    model._get_fsdp_state = lambda: SimpleNamespace(_fsdp_param_groups=[SimpleNamespace(modules=(model,))])
    (reason,) = why_stock(groups_of(model)[0])
    assert reason.code == "F110" and "'fsdp_params'" in reason.reason


# ---- the table and its texts

def test_every_reason_has_a_page_and_names_all_its_words():
    assert set(REASONS) == {code for code in CODES if re.fullmatch("F[123]..", code)} - {"F307"}
    for code, (text, _, collectives) in REASONS.items():
        words = {word: f"<{word}>" for word in re.findall(r"\{(\w+)\}", text)}
        reason = because(code, **words)
        assert all(word in reason.reason for word in words.values()) and reason.collectives == collectives and not reason.reason.endswith(".")
        assert CODES[code].exit is Exit.STOCK


def test_a_line_says_which_plan_runs_what_and_why_the_rest_is_stock():
    both = {GATHER: "3f2a" * 16, REDUCE: "77ab" * 16}
    assert line("layers.0", (), plans=both, target="host") == 'tidec: group "layers.0" active (all-gather host plan 3f2a3f2a3f2a, reduce-scatter host plan 77ab77ab77ab)'
    own = because("F107", type="Theirs")
    assert line("head", (own,), plans={GATHER: "3f2a" * 16}, target="host") == (
        'tidec: group "head" active (all-gather host plan 3f2a3f2a3f2a, reduce-scatter stock: F107 its reduce-scatter goes through an object of the user\'s own, Theirs)')
    assert line("x", (because("F301"), own), plans={}, target="host") == (
        'tidec: group "x" stock: F301 TIDEC_DISABLE=1; F107 its reduce-scatter goes through an object of the user\'s own, Theirs')
    assert of_collective((own,), GATHER) == () and of_collective((own,), REDUCE) == (own,)


def test_a_call_that_goes_stock_later_is_told_or_refused_with_its_reason():
    reason = because("F203", found="torch.float16")
    assert later_line("layers.0", REDUCE, reason) == 'tidec: group "layers.0" reduce-scatter stock for now: F203 gradients are summed in torch.float16; tidec sums in fp32'
    problem = refusal("layers.0", REDUCE, reason)
    assert problem.exit is Exit.STOCK and str(problem) == (
        'error[F203 reduce-type]: the reduce-scatter of group "layers.0" would be stock, and is not begun\n  reason: gradients are summed in torch.float16; tidec sums in fp32\n'
        "  help: set reduce_dtype=torch.float32 in the MixedPrecisionPolicy")
    assert refusal("x", GATHER, because("F206")).diagnostics[0].help == "without require=True and TIDEC_REQUIRE it runs as FSDP2 made it"


def test_what_is_required_and_stays_stock_raises_every_reason():
    require({})
    require({"a": (), "b": ()})
    with pytest.raises(TidecError) as raised:
        require({"a": (because("F301"),), "b": (because("F107", type="T"), because("F104", parameter='"w"'))})
    first, *others = raised.value.diagnostics
    assert raised.value.exit is Exit.STOCK and [d.code for d in raised.value.diagnostics] == ["F301", "F107", "F104"] and all(d.help for d in raised.value.diagnostics)
    assert first.sentence == 'group "a" keeps the stock all-gather and reduce-scatter' and others[0].sentence == 'group "b" keeps the stock reduce-scatter'


def test_a_policy_that_sums_in_bf16_is_required_with_its_remedy():
    """FSDP2's default: reduce_dtype is that of the parameters."""
    reasons = why_stock(live(nn.Linear(4, 4).to(torch.bfloat16), mp_policy=MixedPrecisionPolicy()))
    with pytest.raises(TidecError, match="its reduce_dtype is bf16; tidec sums in fp32\n  help: set reduce_dtype=torch.float32 in the MixedPrecisionPolicy"):
        require({"a": reasons})
