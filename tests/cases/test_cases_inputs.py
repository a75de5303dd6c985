"""Public reports that shapes, layout and topology answer; `row` is the number in the list of cases."""
import json
import math
import os
import pathlib
import subprocess
import sys
from collections import Counter
from fractions import Fraction

import pytest

from tidec.errors import Exit, TidecError
from tidec.inputs.ask import Ask, Collective, stock_cause
from tidec.inputs.capability import Lowering
from tidec.inputs.contract import gradient_scale, owned_rows, rows_per_rank
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter, digest, load_groups, read_groups
from tidec.inputs.topology import parse_topology, read_topology
from tidec.interpret.bytes import play
from tidec.plan.ir import Plan
from tidec.plan.layout import Segment, check_layout, lay_out
from tidec.plan.lower import lower
from tidec.plan.steps import Space
from tidec.schedule.catalog import path, traced
from tidec.schedule.program import OpKind

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
MODELS = ROOT.parent / "shared" / "models"


def group_of(*shapes: tuple[int, ...], dtype: Dtype = Dtype.BF16, **more) -> Group:
    return Group("g", 1, tuple(Parameter(f"p{i}", shape, dtype, **more) for i, shape in enumerate(shapes)))


def text_of(shape, **more) -> str:
    return json.dumps([{"name": "w", "shape": shape, "dtype": "bf16", **more}])


def plan_of(collective: Collective, topo: str, *shapes: tuple[int, ...]) -> Plan:
    topology = parse_topology(topo)
    return lower(Ask(topology, group_of(*shapes), Lowering.P2P, parse_knobs((), topology.lanes, nodes=topology.nodes)), collective)


def test_row_1_two_rows_on_eight_ranks_leave_six_of_them_empty():
    layout = lay_out(group_of((2, 4096)), parse_topology("1x8").ranks)
    (w,) = layout.params
    assert (w.shard_rows, w.shard_bytes, layout.landing_bytes, layout.landing_bytes - layout.pad_bytes) == (1, 8192, 65536, 16384)
    assert [owned_rows(2, 8, r) for r in range(8)] == [(0, 1), (1, 2)] + [(2, 2)] * 6
    assert layout.zero_row_ranks == 6
    # They send a shard of padding like the rest, and no gradient is read for them.
    assert layout.gradient_rows(Segment(0, 0, 4096, 0), 0, 8) == (2, 0)


@pytest.mark.parametrize("topo", ["1x8", "2x4", "4x2", "8x1"])
@pytest.mark.parametrize("collective", Collective)
def test_row_1_ranks_without_rows_signal_and_wait_like_the_rest(collective, topo):
    """Their steps are those that they have where every rank owns a row, and as many of each kind of signal and wait as rank 0 has."""
    two, eight = (plan_of(collective, topo, (rows, 4096)) for rows in (2, 8))
    for rank in range(8):
        assert [(s.op, s.levels) for s in two.steps(rank, 1)] == [(s.op, s.levels) for s in eight.steps(rank, 1)], f"rank {rank}"
    counts = [Counter((s.kind, x.flag) for s in two.steps(rank, 1) for x in s.levels) for rank in range(8)]
    assert {kind for kind, _ in counts[0]} >= {OpKind.WAIT, OpKind.SIGNAL} and counts == [counts[0]] * 8
    assert play(plan_of(collective, topo, (2, 8))).is_ok


@pytest.mark.parametrize("topo", ["1x8", "2x4", "4x2", "8x1"])
def test_row_1_no_gradient_is_read_for_rows_that_are_missing(topo):
    """Of each rank's gradient both rows are read, every value once. (The gather does send six shards of padding, so that all ranks do the same.)"""
    plan = plan_of(Collective.REDUCE_SCATTER, topo, (2, 4096))
    sources = [(m.src, m) for rank in range(8) for step in plan.steps(rank) for m in step.moves if m.src.space is Space.GRAD]
    read = Counter((at.node, at.lane, at.offset + row * m.src_pitch + byte) for at, m in sources for row in range(m.rows) for byte in range(0, m.width, 2))
    assert read == Counter((n, j, byte) for n in range(plan.nodes) for j in range(plan.lanes) for byte in range(0, 16384, 2))


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


def test_row_12_another_shard_dimension_falls_back():
    group = read_groups(text_of([4, 6], shard_dim=1), file="g.json").groups[0]
    for collective in Collective:
        assert stock_cause(group, collective).reason == 'parameter "w" is sharded on dimension 1; tidec plans dimension 0'


@pytest.mark.parametrize("topology", ["1x4", '{"nodes": 1, "lanes": 4}', '{"ranks": 4, "lanes": 4}'])
def test_row_12_hsdp_is_planned_for_the_shard_mesh_and_every_one_of_its_four_ranks_has_an_expert(topology):
    """HSDP of 2 replicas by 4 shards is given as the shard mesh, 1x4: N is 4. At 8 ranks half of them would have no expert."""
    topo = parse_topology(topology) if topology[0] != "{" else read_topology(topology, file="t.json")
    group = read_groups(text_of([4, 16, 8]), file="g.json").groups[0]
    plans = [lower(Ask(topo, group, Lowering.P2P, parse_knobs((), topo.lanes, nodes=topo.nodes)), c) for c in Collective]
    for plan in plans:
        assert (plan.ranks, plan.layout.params[0].shard_rows, plan.layout.zero_row_ranks, plan.layout.pad_bytes) == (4, 1, 0, 0)
    gathered, reduced = ([m for r in range(4) for step in plan.steps(r) for m in step.moves] for plan in plans)
    assert {(m.src.lane, m.dst.lane, m.width) for m in gathered} == {(i, o, 256) for i in range(4) for o in range(4)}
    assert {m.src.offset for m in reduced if m.src.space is Space.GRAD} == {256 * r for r in range(4)}
    assert lay_out(group, 8).zero_row_ranks == 4


def test_row_14_a_transposed_view_is_refused_and_never_copied_as_row_major():
    with pytest.raises(TidecError, match='P005 bad-shape.: parameter "w" is not contiguous') as caught:
        read_groups(text_of([4096, 4096], stride=[1, 4096]), file="g.json")
    assert caught.value.exit is Exit.USAGE


def test_row_16_offsets_past_32_bits_are_exact():
    """The layout; the emitted offsets of the same table are echoed in tests/build/test_echo.py."""
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


@pytest.mark.parametrize(("schedule", "old", "new"), [
    ("ring_ag", "rows[e % 2, q + 1].at(to, j), then=", "rows[e % 2, q + 1].at(to, wrap(j + 1, s.lanes)), then="),
    ("tide_ag", "stage[h].at(to, j), then=", "stage[h].at(to, wrap(j + 1, L)), then="),
    ("tide_ag", "stage[h + k].at(to, j), then=", "stage[h + k].at(to, back(j - 1, L)), then="),
    ("tide_ag", "stage[h + k].at(to, j), then=", "stage[h + k].at(n, j), then="),
], ids=["ring", "first slot", "later slots", "own node"])
def test_row_27_a_put_off_its_rail_is_refuted(schedule, old, new):
    pytest.importorskip("z3")
    from tidec.verify.obligation import Verdict
    from tidec.verify.prove import prove

    text = path(schedule).read_text(encoding="utf-8")
    assert text.count(old) == 1
    claims = prove(traced(schedule, 2, source=text.replace(old, new)), first_only=True).claims
    assert (claims[-1].code, claims[-1].verdict) == ("V103", Verdict.REFUTED) and claims[-1].example["instances"][0]["op"] == "put"
    assert all(c.verdict is Verdict.PROVED for c in claims[:-1])


def test_row_57_the_digest_is_the_same_under_every_hash_seed():
    path = EXAMPLES / "deepseek-v3.json"
    code = f"from tidec.inputs.signature import *; print(*map(digest, load_groups({os.fspath(path)!r}).groups))"
    printed = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": os.fspath(ROOT), "PYTHONHASHSEED": seed}).stdout.split() for seed in ("1", "4242")]
    assert printed[0] == printed[1] == [digest(group) for group in load_groups(path).groups]


WRITE_A_BUNDLE = """\
import sys
from pathlib import Path
from tidec.emit.bundle import write_bundle
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import load_groups
from tidec.inputs.topology import parse_topology
from tidec.plan.lower import lower
from tidec.verify.certificate import Proved
topology = parse_topology("3x2")
asks = [Ask(topology, g, Lowering.P2P, parse_knobs((), topology.lanes, nodes=topology.nodes)) for g in load_groups(Path(sys.argv[1])).groups]
write_bundle([Proved(lower(a, c), "{}") for a in asks for c in Collective], asks=asks, out=Path(sys.argv[2]))
"""


def test_row_57_a_bundle_is_the_same_under_every_hash_seed(tmp_path):
    """Every file of it, with certificates that say nothing. tests/test_pipeline.py has the whole compile, proofs too, in eight processes."""
    groups = [{"name": name, "params": [{"name": f"{name}.{i}", "shape": shape, "dtype": "bf16"} for i, shape in enumerate(shapes)]}
              for name, shapes in (("first", ([6, 4], [7])), ("second", ([9],)), ("third", ([5, 2, 2], [3, 3], [1])))]
    (tmp_path / "g.json").write_text(json.dumps({"groups": groups}), encoding="utf-8")
    for seed in ("1", "4242"):
        subprocess.run([sys.executable, "-c", WRITE_A_BUNDLE, os.fspath(tmp_path / "g.json"), os.fspath(tmp_path / seed)], check=True,
                       env={**os.environ, "PYTHONPATH": os.fspath(ROOT), "PYTHONHASHSEED": seed})
    one, other = ({p.relative_to(tmp_path / seed): p.read_bytes() for p in (tmp_path / seed).rglob("*") if p.is_file()} for seed in ("1", "4242"))
    assert len(one) == 6 + 3 * 3 * 2 and {p.suffix for p in one} == {".json", ".hpp", ".cpp", ".cu", ".sha256"}
    assert sorted(one) == sorted(other) and [str(p) for p in one if one[p] != other[p]] == []


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


@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize("shapes", [((1,),), ((5, 3), (7,))])
def test_row_72_on_one_rank_nothing_leaves_it_and_the_output_is_the_gradient(collective, shapes):
    """Played on bytes: the output of each call is the sum over one rank, the gradient; alpha, 1 there, is the runner's."""
    plan = plan_of(collective, "1x1", *shapes)
    for call in range(3):
        steps = list(plan.steps(0, call))
        assert steps and all(step.kind not in (OpKind.PUT, OpKind.LAND) for step in steps)
        assert {(place.node, place.lane) for step in steps for m in step.moves for place in (m.src, m.dst)} == {(0, 0)}
        assert {rank for step in steps for x in step.levels for rank in (x.owner, x.raiser)} <= {(0, 0)}
    sums = [step for step in plan.steps(0) if step.kind is OpKind.SUM]
    if collective is Collective.REDUCE_SCATTER:
        # One term each parameter, the gradient from its first to its last byte.
        assert [[(m.src.space, m.src.param, m.src.offset, m.width * m.rows) for m in s.moves] for s in sums] == [
            [(Space.GRAD, p, 0, 2 * math.prod(shape)) for p, shape in enumerate(shapes)]]
    for accumulate in (False, True):
        report = play(plan, seed=72, accumulate=accumulate)
        assert report.is_ok, report.problem


def test_row_75_alpha_is_the_mean_unless_a_divide_factor_says_otherwise():
    """The formula alone. No plan and no command of tidec uses it: alpha is an argument of each call of a runner."""
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
