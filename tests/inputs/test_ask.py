"""What cannot be planned keeps the stock collective, with the first parameter that is the reason."""
import pathlib

import pytest

from tidec.errors import Exit, TidecError, CODES
from tidec.inputs.ask import Ask, Collective, Mode, StockCause, read_mode, stock_cause, stock_reason
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import FULL, Knobs, default_knobs
from tidec.inputs.signature import Dtype, Group, Parameter, load_groups
from tidec.inputs.topology import Topology

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT.parent / "shared" / "models"
GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER


def param(name="w", shape=(4, 2), dtype=Dtype.BF16, **more) -> Parameter:
    return Parameter(name, shape, dtype, **more)


def causes(*params: Parameter, **more) -> tuple[StockCause | None, StockCause | None]:
    group = Group("g", 1, params, **more)
    return stock_cause(group, GATHER), stock_cause(group, REDUCE)


def test_plain_groups_are_planned():
    assert causes(param()) == (None, None)
    assert causes(param(), param("v", requires_grad=False)) == (None, None)
    assert causes(param(dtype=Dtype.FP32), param_dtype=Dtype.BF16) == (None, None)
    assert causes(param(shape=(2, 4096)), param("empty", shape=(0,))) == (None, None)
    assert causes(param(dtype=Dtype.FP16)) == causes(param(dtype=Dtype.FP32)) == (None, None)


def test_a_parameter_sharded_on_another_dimension_is_the_reason_for_both():
    cause = StockCause('parameter "v" is sharded on dimension 1; tidec plans dimension 0', "v")
    assert causes(param(), param("v", shard_dim=1), param("u", shard_dim=1)) == (cause, cause)


def test_trainable_parameters_of_two_types_are_the_reason_for_both():
    cause = StockCause('trainable parameters have different types: "w" is bf16, "v" is fp32; '
                       "FSDP2 of torch 2.14 and before stops at its first forward pass (AssertionError: FSDP expects uniform original parameter dtype)", "v")
    assert causes(param(), param("v", dtype=Dtype.FP32)) == (cause, cause)
    assert causes(param(), param("v", dtype=Dtype.FP32), param_dtype=Dtype.BF16) == (cause, cause)


def test_a_frozen_parameter_of_another_type_keeps_the_stock_all_gather_only():
    frozen = param("v", dtype=Dtype.FP32, requires_grad=False)
    assert causes(param(), frozen) == (StockCause('parameters are gathered in different types: "w" is bf16, "v" is fp32; set param_dtype to gather them in one', "v"), None)
    assert causes(param(), frozen, param_dtype=Dtype.BF16) == (None, None)


def test_256_trainable_parameters_are_planned_and_257_are_not():
    frozen = tuple(param(f"f{i}", requires_grad=False) for i in range(50))
    many = tuple(param(f"p{i}") for i in range(257))
    assert causes(*frozen, *many[:256]) == (None, None)
    cause = StockCause('it has more trainable parameters than a plan can hold: 257 > 256, from "p256" on', "p256")
    assert causes(*many) == (cause, cause)


def test_the_reduce_scatter_sums_in_fp32_only():
    assert causes(param(), reduce_dtype=Dtype.BF16) == (None, StockCause("its reduce_dtype is bf16; tidec sums in fp32"))
    assert causes(param(dtype=Dtype.FP64)) == (None, StockCause('the gradient of parameter "w" is fp64; tidec sums in fp32', "w"))


def test_a_group_that_trains_nothing_reduces_nothing():
    assert causes(param(requires_grad=False)) == (None, StockCause("it has no trainable parameter: there is nothing to reduce", "w"))
    nothing = StockCause("its trainable parameters have no elements: there is nothing to reduce", "v")
    assert causes(param(requires_grad=False), param("v", shape=(0, 3))) == (None, nothing)


def test_a_group_without_elements_moves_nothing():
    cause = StockCause("its parameters have no elements: there is nothing to move", "w")
    assert causes(param(shape=(3, 0))) == (cause, cause)


def test_a_cast_from_fp64_keeps_the_stock_all_gather():
    cause = StockCause('parameter "w" is cast from fp64 to bf16; tidec casts between bf16, fp16 and fp32', "w")
    assert causes(param(dtype=Dtype.FP64), param_dtype=Dtype.BF16) == (cause, None)


def test_a_mesh_of_its_own_is_the_reason_for_both():
    cause = StockCause('its mesh is ["ep"]; tidec plans groups that all ranks share')
    assert causes(param(), mesh='["ep"]') == (cause, cause)


def test_the_note_says_which_collective_and_why():
    note = stock_reason(Group("embed", 1, (param("embed.weight", shard_dim=1),)), REDUCE)
    assert str(note) == """\
note[P012 stock-collective]: group "embed" keeps the stock reduce-scatter
  reason: parameter "embed.weight" is sharded on dimension 1; tidec plans dimension 0
  help: tidec why-not lists every such group; --stock-ok makes the exit code 0"""
    assert CODES[note.code].exit is Exit.STOCK
    assert stock_reason(Group("g", 1, (param(),)), REDUCE) is None


@pytest.mark.skipif(not MODELS.is_dir(), reason="the shared model files are not beside this checkout")
def test_two_shared_models_keep_stock_and_all_others_are_planned():
    stock = {}
    for path in sorted(MODELS.glob("*.json")):
        if path.name != "EXPECTED.json":
            for group in load_groups(path).groups:
                for collective in Collective:
                    if cause := stock_cause(group, collective):
                        stock[path.stem, group.name, collective] = cause.parameter
    assert {(model, group): parameter for (model, group, _), parameter in stock.items()} == {
        ("qwen3-30b-a3b.per-expert", "block"): "mlp.experts.83.up_proj.weight",
        ("gpt-oss-120b.openai-layout", "block"): "attn.qkv.weight",
        ("gpt-oss-120b.openai-layout", "norm+head"): "unembedding.weight"}
    assert len(stock) == 6


def ask(knobs: Knobs, *, nodes=8, lanes=8, **more) -> Ask:
    return Ask(Topology(nodes, lanes), Group("g", 1, (param(dtype=Dtype.FP32),), **more), Lowering.P2P, knobs)


def test_an_ask_settles_the_cast():
    assert ask(default_knobs(8)).knobs == Knobs(8, 4, cast=False) and ask(default_knobs(8)).mode is Mode.IN_PLACE
    assert ask(default_knobs(8), param_dtype=Dtype.BF16).knobs.cast is True
    assert ask(Knobs(8, 4, cast=True)).knobs.cast is True


def test_an_ask_refuses_knobs_that_do_not_fit():
    with pytest.raises(TidecError) as caught:
        ask(Knobs(8, 4, cast=False), param_dtype=Dtype.BF16)
    assert str(caught.value) == """\
error[P006 bad-knob]: cast=0 cannot hold for group "g"
  reason: parameter "w" is stored in fp32 and gathered in bf16
  help: leave cast out"""
    with pytest.raises(TidecError, match=r"W=9 is outside 1..8, the lane count"):
        ask(Knobs(9, 4))
    with pytest.raises(TidecError, match=r"n_out=2 is below min\(k, W, M-1\) = min\(4, 8, 7\) = 4"):
        ask(Knobs(8, 4, n_out=2))
    assert ask(Knobs(8, 4, n_out=2), nodes=3).knobs.n_out == 2
    assert ask(Knobs(1, 1), nodes=1, lanes=1).knobs.n_out is FULL


@pytest.mark.parametrize("given", ["", "Slot_reuse", "in_place ", None, 3, b"in_place", Mode.SLOT_REUSE], ids=repr)
def test_a_mode_is_the_text_of_one_of_two(given):
    assert [read_mode(m.value) for m in Mode] == list(Mode)
    with pytest.raises(TidecError, match=r"P001 usage\]: there is no mode"):
        read_mode(given)
