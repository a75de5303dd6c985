"""What is asked for a model under FSDP2: packed shards, and landings that are all used."""
from tidec.inputs.ask import Ask
from tidec.inputs.asked import as_asked, as_kept, moved, with_kept
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import Knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology

BLOCK, ROOT = (Parameter("w", (4, 2), Dtype.FP32), Parameter("b", (3,), Dtype.FP32, requires_grad=False)), (Parameter("e", (9, 2), Dtype.FP32),)


def group(name: str, params: tuple[Parameter, ...], repeat: int = 1) -> Group:
    return Group(name, repeat, params, param_dtype=Dtype.BF16)


def landings(*groups: Group) -> list[int]:
    return [g.landings for g in as_asked(groups)]


def test_who_shares_a_plan_keeps_two_landings_and_who_does_not_has_one():
    assert landings(group("root", ROOT), group("0", BLOCK), group("1", BLOCK)) == [1, 2, 2]
    assert landings(group("root", ROOT), group("blocks", BLOCK, repeat=2)) == [1, 2]
    assert landings(group("0", BLOCK), group("root", ROOT)) == [1, 1]


def test_names_do_not_tell_plans_apart_and_types_and_frozen_parameters_do():
    renamed = tuple(Parameter(f"{p.name}2", p.shape, p.dtype, p.requires_grad) for p in BLOCK)
    assert landings(group("0", BLOCK), group("1", renamed)) == [2, 2]
    assert landings(group("0", BLOCK), Group("1", 1, BLOCK)) == [1, 1]
    trained = tuple(Parameter(p.name, p.shape, p.dtype) for p in BLOCK)
    assert landings(group("0", BLOCK), group("1", trained)) == [1, 1] and moved(group("0", BLOCK))[1] == (3, 1, Dtype.BF16, False)


def test_shards_are_packed_as_they_are_gathered_so_that_no_plan_casts():
    (asked,) = as_asked((group("0", BLOCK),))
    assert {p.dtype for p in asked.params} == {Dtype.BF16}
    casts = [Ask(parse_topology("1x2"), g, Lowering.P2P, Knobs(W=2, k=1)).knobs.cast for g in (group("0", BLOCK), asked)]
    assert casts == [True, False]


def test_gradients_that_are_kept_in_fp32_have_a_group_of_their_own():
    root, block = group("root", ROOT), Group("0", 1, BLOCK)
    kept = as_kept(root)
    assert with_kept((root, block)) == (root, block, kept), "gradients of the block are fp32 in any case"
    assert kept.name == "root.kept" and kept.gradient_dtype is Dtype.FP32
