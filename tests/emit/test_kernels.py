"""Which kernels a bundle asks for, as text."""
from tidec.emit.kernels import Kernels, kernels
from tidec.emit.render import render
from tidec.inputs.ask import Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.signature import Dtype

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER


def launchers(found: Kernels) -> list[str]:
    return [k.launcher for k in (*found.sums, *found.lands, *found.casts)]


def test_an_all_gather_without_a_cast_has_no_kernel(proved):
    assert launchers(kernels([proved("3x2", GATHER).plan])) == []


def test_a_cast_has_one_kernel_a_pair_of_types(proved):
    plan = proved("3x2", GATHER, gathered=Dtype.BF16).plan
    (cast,) = kernels([plan]).casts
    assert cast.launcher == "Casting<float, Bf16>" and cast.fields == ("Dtype::kFp32", "Dtype::kBf16")


def test_one_node_sums_and_does_not_land(proved):
    assert launchers(kernels([proved("1x4", REDUCE).plan])) == ["Sum<Bf16, 4>"]


def test_the_lowering_says_who_sums_the_lanes(proved):
    assert launchers(kernels([proved("3x2", REDUCE).plan])) == ["Sum<Bf16, 2>", "Landing<InOrder<2>>"]
    assert launchers(kernels([proved("3x2", REDUCE, lowering=Lowering.NVLS).plan])) == ["Sum<Bf16, 2>", "Landing<BySwitch<2>>"]


def test_kernels_are_shared_between_plans_and_their_order_is_fixed(proved):
    plans = [proved(topo, c, name=name, shapes=shapes).plan for topo, c, name, shapes in (
        ("3x2", REDUCE, "a", ((7, 3),)), ("3x2", REDUCE, "b", ((9, 5),)), ("3x2", GATHER, "a", ((7, 3),)), ("5x2", REDUCE, "c", ((8, 8),)))]
    assert kernels(plans) == kernels(plans[::-1])
    assert launchers(kernels(plans)) == ["Sum<Bf16, 2>", "Landing<InOrder<2>>"]


def test_the_emitted_kernels_are_names_and_instantiations(proved, golden):
    gather, reduce = proved("3x2", GATHER, name="block", gathered=Dtype.BF16), proved("3x2", REDUCE, name="block")
    golden("emit/block.kernels.cu", render([gather, reduce])[-1].text)


def test_a_bundle_without_plans_has_no_kernels(golden):
    golden("emit/none.kernels.cu", render([])[-1].text)
