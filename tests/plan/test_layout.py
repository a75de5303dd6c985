"""Rows tile the landing, sub-slices tile the packed row, and gradients are read inside their bounds."""
import dataclasses
import json
import pathlib

import pytest

from tidec.errors import TidecError
from tidec.inputs.contract import owned_rows
from tidec.inputs.signature import Dtype, Group, Parameter, load_groups
from tidec.plan.layout import GroupLayout, Segment, SubSlices, check_layout, lay_out

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT.parent / "shared" / "models"


def hand_group() -> Group:
    """On 4 ranks: a 3x2 (R=1), a frozen vector of 5 (R=2), a 6x1x3 (R=2), all bf16."""
    return Group("g", 1, (Parameter("a", (3, 2), Dtype.BF16), Parameter("f", (5,), Dtype.BF16, requires_grad=False), Parameter("b", (6, 1, 3), Dtype.BF16)))


def drawn_group(rng, num_params: int = 6) -> Group:
    params = tuple(Parameter(f"p{i}", tuple(rng.randrange(0 if rng.random() < 0.1 else 1, 12) for _ in range(rng.randrange(1, 4))), Dtype.FP32,
                             requires_grad=rng.random() < 0.8) for i in range(rng.randrange(1, num_params)))
    return Group("g", 1, params, param_dtype=rng.choice([None, Dtype.BF16]))


def refusal(call, *args) -> str:
    with pytest.raises(TidecError) as caught:
        call(*args)
    return str(caught.value)


def test_a_group_worked_by_hand():
    layout = lay_out(hand_group(), 4)
    assert [(p.shard_rows, p.shard_elems, p.shard_bytes, p.start_bytes) for p in layout.params] == [(1, 2, 4, 0), (2, 2, 4, 4), (2, 6, 12, 8)]
    assert (layout.shard_bytes, layout.landing_bytes) == (20, 80)
    assert layout.pad_bytes == 80 - 2 * (6 + 5 + 18)
    # a has rows on ranks 0-2, f on 0-2, b on 0-2.
    assert layout.zero_row_ranks == 3
    assert [p.is_aligned16 for p in layout.params] == [True, False, False] and layout.unaligned16 == 2
    assert [[layout.landing_offset(p, r) for r in range(4)] for p in range(3)] == [[0, 4, 8, 12], [16, 20, 24, 28], [32, 44, 56, 68]]
    assert (layout.packed_elems, layout.pack_bytes) == (8, 4 * 4 * 8)
    assert [(p.packed_start, p.packed_elems) for p in layout.params] == [(0, 2), (2, 0), (2, 6)]


def test_sub_slices_worked_by_hand():
    # E = 8 fits the first of two sub-slices, because a capacity is a multiple of 8 elements.
    slices = lay_out(hand_group(), 4).sub_slices(1, 2)
    assert (slices.capacity_elems, slices.bounds(0, 0), slices.bounds(0, 1)) == (8, (0, 8), (8, 8))
    assert slices.segments(0, 0) == slices.row_segments(0) == (Segment(param=0, first=0, count=2, at=0), Segment(param=2, first=0, count=6, at=2))
    assert slices.segments(0, 1) == ()
    # 5 rows a rank of 7 values: E = 35, four sub-slices of ceil(35/4) = 9 -> 16 elements.
    wide = lay_out(Group("g", 1, (Parameter("w", (10, 7), Dtype.BF16),)), 2).sub_slices(2, 2)
    assert (wide.capacity_elems, [wide.bounds(part, s) for part in (0, 1) for s in (0, 1)]) == (16, [(0, 16), (16, 32), (32, 35), (35, 35)])
    assert wide.segments(0, 1) == (Segment(0, 16, 16, 0),) and wide.row_segments(0) == (Segment(0, 0, 32, 0),)
    assert wide.row_segments(1) == (Segment(0, 32, 3, 0),)


def test_gradient_rows_worked_by_hand():
    # D*K = 6*3 = 18 elements, n_p = 6: ranks 0-2 have all of it and rank 3 has none.
    layout = lay_out(hand_group(), 4)
    whole, back = Segment(2, 0, 6, 0), Segment(2, 3, 2, 0)
    assert [layout.gradient_rows(whole, node, 2) for node in (0, 1)] == [(2, 0), (1, 0)]
    assert layout.gradient_rows(whole, 0, 4) == layout.gradient_rows(back, 0, 4) == (3, 0)
    # 5 rows of 2 on 2 ranks: R = 3, n_p = 6, rank 1 has 4 of its 6 elements.
    odd = lay_out(Group("g", 1, (Parameter("w", (5, 2), Dtype.BF16),)), 2)
    assert odd.gradient_rows(Segment(0, 0, 6, 0), 0, 2) == (1, 4)
    assert odd.gradient_rows(Segment(0, 1, 5, 0), 0, 2) == (1, 3)
    assert odd.gradient_rows(Segment(0, 4, 2, 0), 0, 2) == (1, 0)


def test_the_landing_is_every_parameter_followed_by_its_padding(draws):
    for seed in range(60):
        rng = draws(seed)
        group, ranks = drawn_group(rng), rng.randrange(1, 13)
        layout = lay_out(group, ranks)
        check_layout(layout)
        at = 0
        for i, (p, q) in enumerate(zip(layout.params, group.params)):
            item = group.gathered_as(q).item_bytes
            for r in range(ranks):
                assert layout.landing_offset(i, r) == at + r * p.shard_bytes, seed
                first, last = owned_rows(q.rows, ranks, r)
                # A real row lies where a contiguous (D, K) tensor has it.
                assert last == first or layout.landing_offset(i, r) == at + first * q.row_elems * item, seed
            at += ranks * p.shard_bytes
        assert at == layout.landing_bytes, seed
        assert layout.pad_bytes == at - sum(q.elems * group.gathered_as(q).item_bytes for q in group.params), seed
        assert layout.zero_row_ranks == sum(first == last for q in group.params for r in range(ranks) for first, last in [owned_rows(q.rows, ranks, r)]), seed


def test_every_packed_element_is_in_one_segment(draws):
    for seed in range(60):
        rng = draws(seed)
        group, ranks = drawn_group(rng), rng.randrange(1, 13)
        slices = lay_out(group, ranks).sub_slices(rng.randrange(1, 5), rng.randrange(1, 9))
        check_layout(slices.layout, slices)
        want = [(i, x) for i, p in enumerate(slices.layout.params) if p.is_trainable for x in range(p.shard_elems)]
        found = []
        for part in range(slices.num_parts):
            row_at = slices.row_bounds(part)[0]
            pieces = []
            for s in range(slices.lanes):
                x0, x1 = slices.bounds(part, s)
                assert x1 - x0 <= slices.capacity_elems and slices.capacity_elems % 8 == 0, seed
                for g in slices.segments(part, s):
                    assert g.at == len(found) - x0, seed
                    found += [(g.param, g.first + x) for x in range(g.count)]
                    pieces += [(g.param, g.first + x, x0 + g.at + x) for x in range(g.count)]
            assert pieces == [(g.param, g.first + x, row_at + g.at + x) for g in slices.row_segments(part) for x in range(g.count)], seed
        assert found == want, seed


def test_full_gradient_rows_are_a_prefix_and_one_row_at_most_is_partial(draws):
    for seed in range(60):
        rng = draws(seed)
        lanes, nodes = rng.randrange(1, 9), rng.randrange(1, 6)
        layout = lay_out(drawn_group(rng), lanes * nodes)
        for p, rows in enumerate(layout.params):
            for _ in range(10 if rows.shard_elems else 0):
                first = rng.randrange(rows.shard_elems)
                segment = Segment(p, first, rng.randrange(1, rows.shard_elems - first + 1), 0)
                for node in range(nodes):
                    assert not misread(layout, segment, node, lanes), f"seed {seed}"


def misread(layout: GroupLayout, segment: Segment, node: int, lanes: int) -> str:
    """Where `gradient_rows` of a segment is not what each rank has of it, counted rank by rank; empty where it is."""
    rows = layout.params[segment.param]
    valid = [max(0, min(segment.count, rows.real_elems - r * rows.shard_elems - segment.first)) for r in range(node * lanes, (node + 1) * lanes)]
    full, tail = layout.gradient_rows(segment, node, lanes)
    said = ([segment.count] * full + [tail] + [0] * lanes)[:lanes]
    return "" if said == valid and 0 <= tail < segment.count else f"{rows} {segment} node {node} of {lanes} lanes: {said}, and there are {valid}"


@pytest.mark.skipif(not MODELS.is_dir(), reason="the shared model files are not beside this checkout")
def test_the_shared_models_have_the_sizes_that_were_worked_out_for_them():
    models = json.loads((MODELS / "EXPECTED.json").read_text())["models"]
    num_compared = 0
    for model, expected in models.items():
        if '"fp32"' in (MODELS / f"{model}.json").read_text():
            continue
        for group, want in zip(load_groups(MODELS / f"{model}.json").groups, expected, strict=True):
            for ranks, fields in want["by_N"].items():
                layout = lay_out(group, int(ranks))
                assert {field: getattr(layout, field) for field in fields} == fields, (model, group.name, ranks)
                num_compared += 1
    assert num_compared == 320


def test_sizes_need_no_loop_over_ranks():
    group = load_groups(ROOT / "examples" / "llama70b.json").groups[1]
    layout = lay_out(group, 2**31 - 1)
    check_layout(layout, layout.sub_slices(4, 1))
    assert layout.landing_offset(8, 2**31 - 2) + layout.params[8].shard_bytes == layout.landing_bytes
    assert layout.zero_row_ranks == sum(2**31 - 1 - p.rows for p in layout.params)


def test_a_group_past_64_bits_is_refused_at_its_first_parameter():
    # 2**31 - 1 ranks of one row each of 2**30 bf16 values.
    group = Group("g", 1, (Parameter("a", (1, 4), Dtype.BF16), Parameter("b", (1, 2**30), Dtype.BF16), Parameter("c", (1, 2**30), Dtype.BF16)))
    assert refusal(lay_out, group, 2**31 - 1) == """\
error[P005 bad-shape]: parameter "b" makes group "g" larger than 64-bit offsets reach
  reason: 2147483647 ranks pack 4294967312 bytes each in fp32
  help: give the shapes that the parameters have, or fewer ranks"""
    lay_out(group, 2**20)


def test_an_index_outside_is_refused():
    layout = lay_out(hand_group(), 4)
    slices = layout.sub_slices(1, 2)
    for call, args, words in ((layout.landing_offset, (3, 0), "parameter 3 is outside 0..2"), (layout.landing_offset, (0, 4), "rank 4 is outside 0..3"),
                              (layout.landing_offset, (-1, 0), "parameter -1 is outside 0..2"), (layout.gradient_rows, (Segment(0, 0, 1, 0), 2, 2), "node 2 is outside 0..1"),
                              (slices.bounds, (1, 0), "part 1 is outside 0..0"), (slices.segments, (0, 2), "sub-slice 2 is outside 0..1"),
                              (slices.row_segments, (-1,), "part -1 is outside 0..0")):
        assert refusal(call, *args).splitlines()[0] == f"error[P102 out-of-range]: {words}"


def changed(layout: GroupLayout, i: int, **fields) -> GroupLayout:
    params = list(layout.params)
    params[i] = dataclasses.replace(params[i], **fields)
    return dataclasses.replace(layout, params=tuple(params))


def test_a_broken_layout_names_the_two_parameters(golden):
    layout = lay_out(hand_group(), 4)
    broken = {
        "rows floored, not ceiled": changed(layout, 2, shard_rows=1),
        "gap": changed(layout, 2, start_bytes=10),
        "overlap": changed(layout, 1, start_bytes=2),
        "two offsets swapped": changed(changed(layout, 0, start_bytes=4), 1, start_bytes=0),
        "packed gap": changed(layout, 2, packed_start=3),
        "packed overlap": changed(layout, 2, packed_start=1),
        "not at the start": changed(layout, 0, start_bytes=4),
    }
    for name, total in (("landing longer than its rows", "shard_bytes"), ("packed output longer than its rows", "packed_elems")):
        broken[name] = dataclasses.replace(layout)
        object.__setattr__(broken[name], total, getattr(layout, total) + 1)
    texts = [f"# {name}\n{refusal(check_layout, layout_)}\n" for name, layout_ in broken.items()]
    slices = layout.sub_slices(1, 2)
    short = SubSlices(layout, 1, 2)
    object.__setattr__(short, "capacity_elems", 3)
    texts.append(f"# sub-slices too short\n{refusal(check_layout, layout, short)}\n")
    check_layout(layout, slices)
    golden("plan/layout-broken.txt", "\n".join(texts))


def test_every_moved_start_is_found(draws):
    for seed in range(100):
        rng = draws(seed)
        layout = lay_out(drawn_group(rng), rng.randrange(2, 9))
        i = rng.randrange(len(layout.params))
        if not layout.params[i].shard_bytes:
            continue
        moved = changed(layout, i, start_bytes=layout.params[i].start_bytes + rng.choice([-4, -2, 2, 4, 64]))
        assert "V402" in refusal(check_layout, moved), seed
        if layout.params[i].is_trainable:
            assert "V402" in refusal(check_layout, changed(layout, i, packed_start=layout.params[i].packed_start + rng.choice([-1, 1, 8]))), seed


# ---- what somebody might lay out by mistake, everywhere alike, so that no number contradicts another


def placed(layout: GroupLayout, offset) -> GroupLayout:
    """A layout whose rows of parameter p on rank r lie at offset(p's rows, r)."""
    class Placed(GroupLayout):
        def landing_offset(self, p: int, r: int) -> int:
            return offset(self.params[p], r)

    return Placed(layout.params, layout.ranks)


def floored(layout: GroupLayout) -> GroupLayout:
    """R = D // N, and every start as that gives it."""
    params, start, packed = [], 0, 0
    for p in layout.params:
        params.append(dataclasses.replace(p, shard_rows=p.rows // layout.ranks, start_bytes=start, packed_start=packed))
        start, packed = start + params[-1].shard_bytes, packed + params[-1].packed_elems
    return GroupLayout(tuple(params), layout.ranks)


def behind_real_rows(layout: GroupLayout) -> GroupLayout:
    """Parameters behind each other by their D rows, not by the N*R that they take."""
    starts, at = {}, 0
    for p in layout.params:
        starts[p.name], at = at, at + p.real_elems * p.item_bytes
    return placed(layout, lambda p, r: starts[p.name] + r * p.shard_bytes)


# Of 4 ranks, 2 a node: the layout, and what the check says of it.
LANDING_MUTANTS = {
    "R = floor(D / N)": (floored, "rank 3's rows start 0 bytes after rank 0's, not 12"),
    "prefix by D_p, not by N*R_p": (behind_real_rows, "they overlap by 4 bytes"),
    "rank-major landing": (lambda x: placed(x, lambda p, r: r * x.shard_bytes + p.start_bytes), "rank 3's rows start 60 bytes after rank 0's, not 12"),
    "pitch of nodes L*S, not L*s_p": (
        lambda x: placed(x, lambda p, r: p.start_bytes * x.ranks + r // 2 * 2 * x.shard_bytes + r % 2 * p.shard_bytes), "rank 3's rows start 44 bytes after rank 0's, not 12"),
}


@pytest.mark.parametrize("mutant", LANDING_MUTANTS)
def test_another_landing_is_refused(mutant):
    make, words = LANDING_MUTANTS[mutant]
    layout = lay_out(hand_group(), 4)
    check_layout(layout)
    said = refusal(check_layout, make(layout))
    assert "V402" in said and words in said, said


class Unclipped(SubSlices):
    """The last sub-slices go on behind the end of the packed row."""

    def _clip(self, i: int) -> int:
        return i * self.capacity_elems


def floor_capacity(layout: GroupLayout) -> SubSlices:
    """E_sub = floor(E / (n_part * L)): the last elements are in no sub-slice."""
    slices = SubSlices(layout, 2, 2)
    object.__setattr__(slices, "capacity_elems", layout.packed_elems // 4)
    return slices


@pytest.mark.parametrize(("make", "words"), [(floor_capacity, "the sub-slices end at element 32 of 35"), (lambda x: Unclipped(x, 2, 2), "its runs end at element 35, not 48")],
                         ids=["E_sub = floor(E / (n_part*L))", "no clip at E"])
def test_another_cut_of_the_packed_row_is_refused(make, words):
    # 5 rows a rank of 7 values: E = 35, four sub-slices of 16.
    layout = lay_out(Group("g", 1, (Parameter("w", (10, 7), Dtype.BF16),)), 2)
    check_layout(layout, SubSlices(layout, 2, 2))
    said = refusal(check_layout, layout, make(layout))
    assert "V402" in said and words in said, said


class NoTail(GroupLayout):
    """The row that the gradient ends in is read to its end."""

    def gradient_rows(self, segment: Segment, node: int, lanes: int) -> tuple[int, int]:
        full, tail = GroupLayout.gradient_rows(self, segment, node, lanes)
        return full + (tail > 0), 0


class PaddingRead(GroupLayout):
    """Rows of padding count as rows of the gradient, so that nothing keeps what lies there out of a sum."""

    def gradient_rows(self, segment: Segment, node: int, lanes: int) -> tuple[int, int]:
        return lanes, 0


@pytest.mark.parametrize(("mutant", "shape"), [(NoTail, (5, 2)), (PaddingRead, (5, 2)), (PaddingRead, (3, 2))], ids=["no tail clip", "padding read, behind a tail", "padding read, whole rows"])
def test_another_reading_of_a_gradient_is_seen(mutant, shape):
    # 5 rows on 4 ranks: R = 2, and 2, 2, 1, 0 are there. 3 rows: R = 1, and 1, 1, 1, 0.
    layout = lay_out(Group("g", 1, (Parameter("w", shape, Dtype.BF16),)), 4)
    whole = Segment(0, 0, layout.params[0].shard_elems, 0)
    assert [misread(layout, whole, node, 2) for node in (0, 1)] == ["", ""]
    assert [bool(misread(mutant(layout.params, 4), whole, node, 2)) for node in (0, 1)] == [False, True]
