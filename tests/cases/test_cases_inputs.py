"""Public reports that shapes, layout and topology answer; `row` is the number in the list of cases."""
import json
import math
import os
import pathlib
import subprocess
import sys
from fractions import Fraction

import pytest

from tidec.errors import Exit, TidecError
from tidec.inputs.ask import Collective, stock_cause
from tidec.inputs.contract import gradient_scale, owned_rows, rows_per_rank
from tidec.inputs.signature import Dtype, Group, Parameter, digest, load_groups, read_groups
from tidec.inputs.topology import parse_topology, read_topology
from tidec.plan.layout import Segment, check_layout, lay_out

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MODELS = ROOT.parent / "shared" / "models"


def group_of(*shapes: tuple[int, ...], dtype: Dtype = Dtype.BF16, **more) -> Group:
    return Group("g", 1, tuple(Parameter(f"p{i}", shape, dtype, **more) for i, shape in enumerate(shapes)))


def text_of(shape, **more) -> str:
    return json.dumps([{"name": "w", "shape": shape, "dtype": "bf16", **more}])


def test_row_1_two_rows_on_eight_ranks_leave_six_of_them_empty():
    layout = lay_out(group_of((2, 4096)), parse_topology("1x8").ranks)
    (w,) = layout.params
    assert (w.shard_rows, w.shard_bytes, layout.landing_bytes, layout.landing_bytes - layout.pad_bytes) == (1, 8192, 65536, 16384)
    assert [owned_rows(2, 8, r) for r in range(8)] == [(0, 1), (1, 2)] + [(2, 2)] * 6
    assert layout.zero_row_ranks == 6
    # They send a shard of padding like the rest, and no gradient is read for them.
    assert layout.gradient_rows(Segment(0, 0, 4096, 0), 0, 8) == (2, 0)


def test_row_4_a_head_of_32001_rows_is_one_contiguous_view():
    layout = lay_out(group_of((32001, 64)), parse_topology("2x4").ranks)
    assert layout.params[0].shard_rows == 4001
    first, last = owned_rows(32001, 8, 7)
    assert last - first == 3994
    assert [layout.landing_offset(0, r) for r in range(8)] == [owned_rows(32001, 8, r)[0] * 64 * 2 for r in range(8)]
    assert layout.gradient_rows(Segment(0, 0, 4001 * 64, 0), 1, 4) == (3, 3994 * 64)


def test_row_10_a_scalar_is_refused_and_never_read_as_no_rows():
    with pytest.raises(TidecError) as caught:
        read_groups(text_of([]), file="g.json")
    assert caught.value.exit is Exit.USAGE
    assert 'parameter "w" is a scalar' in str(caught.value) and "one element, shape [1]" in str(caught.value)


def test_row_12_another_shard_dimension_falls_back_and_n_is_the_shard_group():
    group = read_groups(text_of([4, 6], shard_dim=1), file="g.json").groups[0]
    for collective in Collective:
        assert stock_cause(group, collective).reason == 'parameter "w" is sharded on dimension 1; tidec plans dimension 0'
    # HSDP of 2 replicas by 4 shards: the topology is that of the 4 ranks that share a parameter.
    layout = lay_out(group_of((4, 16, 8)), 4)
    assert (layout.params[0].shard_rows, layout.zero_row_ranks) == (1, 0)


def test_row_14_a_transposed_view_is_refused_and_never_copied_as_row_major():
    with pytest.raises(TidecError, match='P005 bad-shape.: parameter "w" is not contiguous') as caught:
        read_groups(text_of([4096, 4096], stride=[1, 4096]), file="g.json")
    assert caught.value.exit is Exit.USAGE


def test_row_16_offsets_past_32_bits_are_exact():
    layout = lay_out(group_of((19345706, 128)), parse_topology("1x8").ranks)
    (w,) = layout.params
    assert (w.shard_rows, w.shard_bytes, layout.landing_bytes) == (2418214, 619062784, 4952502272)
    assert layout.landing_bytes > 2**32 and layout.landing_offset(0, 7) == 7 * 619062784
    first, last = owned_rows(19345706, 8, 7)
    assert (last - 1) * 128 * 2 == layout.landing_offset(0, 7) + (last - 1 - first) * 256
    assert lay_out(group_of((256, 4096, 7168)), parse_topology("8x8").ranks).landing_bytes == 15032385536


def test_row_17_unaligned_starts_are_counted_and_keep_their_place():
    block = load_groups(EXAMPLES / "qwen3-30b-a3b.json").groups[1]
    layout = lay_out(block, parse_topology("8x8").ranks)
    at = {p.name: p for p in layout.params}
    q, k = at["self_attn.q_norm.weight"], at["self_attn.k_norm.weight"]
    assert (q.shard_bytes, k.shard_bytes, k.start_bytes % 16) == (4, 4, 4)
    after = layout.params[layout.params.index(k) + 1:]
    assert [p.start_bytes % 16 for p in after] == [8] * 5
    assert not k.is_aligned16 and layout.unaligned16 == 6
    assert all(p.start_bytes == sum(q.shard_bytes for q in layout.params[:i]) for i, p in enumerate(layout.params))


def test_row_22_one_parameter_per_expert_falls_back_and_stacked_experts_do_not():
    stacked = load_groups(EXAMPLES / "qwen3-30b-a3b.json").groups[1]
    assert len(stacked.params) == 11 and [stock_cause(stacked, c) for c in Collective] == [None, None]
    apart = group_of(*[(768, 2048)] * 393)
    assert ["393 > 256" in stock_cause(apart, c).reason for c in Collective] == [True, True]


@pytest.mark.skipif(not MODELS.is_dir(), reason="the shared model files are not beside this checkout")
def test_row_22_the_per_expert_file_falls_back():
    groups = load_groups(MODELS / "qwen3-30b-a3b.per-expert.json").groups
    assert [bool(stock_cause(group, Collective.ALL_GATHER)) for group in groups] == [False, True, False]
    assert "393 > 256" in stock_cause(groups[1], Collective.REDUCE_SCATTER).reason


def test_row_24_lanes_that_do_not_divide_the_ranks_are_refused_with_both_numbers():
    with pytest.raises(TidecError) as caught:
        read_topology('{"ranks": 32, "lanes": 6}', file="t.json")
    assert caught.value.exit is Exit.USAGE and "32 ranks cannot be divided into nodes of 6 lanes" in str(caught.value)
    assert [parse_topology(text).ranks for text in ("5x6", "3x4", "7x8", "1x6")] == [30, 12, 56, 6]


def test_row_27_a_node_with_crossed_rails_is_refused_with_the_order_found():
    straight, crossed = list(range(8)), list(range(7, -1, -1))
    with pytest.raises(TidecError) as caught:
        read_topology(json.dumps({"nodes": 2, "lanes": 8, "rails": [straight, crossed]}), file="t.json")
    assert "node 1 has its rails in another order" in str(caught.value) and "node 1 has [7, 6, 5, 4, 3, 2, 1, 0]" in str(caught.value)
    assert read_topology(json.dumps({"nodes": 2, "lanes": 8, "rails": [crossed, crossed]}), file="t.json").rails == tuple(crossed)


def test_row_57_the_digest_is_the_same_under_every_hash_seed():
    path = EXAMPLES / "deepseek-v3.json"
    code = f"from tidec.inputs.signature import *; print(*map(digest, load_groups({os.fspath(path)!r}).groups))"
    printed = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": os.fspath(ROOT), "PYTHONHASHSEED": seed}).stdout.split() for seed in ("1", "4242")]
    assert printed[0] == printed[1] == [digest(group) for group in load_groups(path).groups]


def test_row_68_a_tied_weight_counts_once_and_in_one_group():
    groups = load_groups(EXAMPLES / "gpt2-small.json").groups
    assert groups[0].params[0].tied_to == ("lm_head.weight",)
    num_values = sum(group.repeat * sum(p.elems for p in group.params) for group in groups)
    assert num_values == 124439808 and num_values + math.prod((50257, 768)) == 163037184
    tied = {"name": "wte.weight", "shape": [9, 4], "dtype": "bf16", "tied_to": ["head.weight"]}
    head = {"name": "head.weight", "shape": [9, 4], "dtype": "bf16"}
    with pytest.raises(TidecError) as caught:
        read_groups(json.dumps({"groups": [{"name": "embed", "params": [tied]}, {"name": "head", "params": [head]}]}), file="g.json")
    assert '"head.weight" of group "head" is tied to "wte.weight" of group "embed"' in str(caught.value) and "ValueError" in str(caught.value)


def test_row_72_on_one_rank_the_gradient_is_the_local_one():
    layout = lay_out(group_of((1,)), parse_topology("1x1").ranks)
    assert (layout.landing_bytes, layout.pad_bytes, layout.packed_elems) == (2, 0, 1)
    assert gradient_scale(1) == 1
    slices = layout.sub_slices(1, 1)
    check_layout(layout, slices)
    assert slices.segments(0, 0) == slices.row_segments(0) == (Segment(0, 0, 1, 0),)
    assert layout.gradient_rows(Segment(0, 0, 1, 0), 0, 1) == (1, 0)


def test_row_75_alpha_is_the_mean_unless_a_divide_factor_says_otherwise():
    assert gradient_scale(4) == Fraction(1, 4)
    assert gradient_scale(4, divide_factor=1.0) == 1
    assert gradient_scale(4, divide_factor=3.0) == Fraction(1, 3)


def test_row_85_offsets_follow_the_group_and_not_the_alphabet():
    # FSDP2's order: a block's children before its direct parameters.
    names = ("lin.weight", "norm.weight", "mod")
    group = Group("block", 1, tuple(Parameter(name, (4 + i, 6), Dtype.BF16) for i, name in enumerate(names)))
    layout = lay_out(group, 3)
    sizes = [rows_per_rank(p.rows, 3) * 6 * 2 for p in group.params]
    assert [p.name for p in layout.params] == list(names)
    assert [p.start_bytes for p in layout.params] == [0, sizes[0], sizes[0] + sizes[1]]
    assert digest(group) != digest(Group("block", 1, tuple(sorted(group.params, key=lambda p: p.name))))


@pytest.mark.skipif(not MODELS.is_dir(), reason="the shared model files are not beside this checkout")
def test_row_85_direct_parameters_of_the_shared_models_stay_last():
    for model, name in (("wan2.2-t2v-a14b", "modulation"), ("gpt-oss-120b", "sinks")):
        for group in load_groups(MODELS / f"{model}.json").groups:
            layout = lay_out(group, 64)
            check_layout(layout)
            assert [p.name for p in layout.params] == [p.name for p in group.params]
            starts = [p.start_bytes for p in layout.params]
            assert starts == sorted(starts)
        assert any(name in p.name for group in load_groups(MODELS / f"{model}.json").groups for p in group.params)
