"""A plan's numbers as C++ tables."""
import re

import pytest

from tidec.emit.tables import tables
from tidec.emit.walk import Constants
from tidec.inputs.ask import Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.signature import Dtype

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER


def tabled(proved, *args, **rest):
    plan = proved(*args, **rest).plan
    return plan, tables(plan, Constants(plan.program))


def rows(t, name):
    return next((a.rows for a in t.arrays if a.name == name), ())


def test_an_all_gather_worked_by_hand(proved):
    # 2x2: p0 is 7x3, R = 2, n = 6 elements, 12 bytes; p1 is 33, R = 9, 18 bytes. S = 30, the landing 120 bytes a bank.
    plan, t = tabled(proved, "2x2", GATHER)
    assert rows(t, "kParams") == ("{21, 6, 12, 0, true}", "{33, 9, 18, 12, true}")
    assert [value for value, _ in t.layout[:5]] == ["2", "2", "30", "15", "8"]
    assert {b.name: (b.type, b.value) for b in t.buffers} == {
        "kShard": ("Buffer<Block::kShard, 1>", "{Space::kShard, 0, 30, 30, {0}, {30}}"),
        "kStage": ("Buffer<Block::kShard, 1>", "{Space::kArena, 1024, 1054, 30, {1}, {30}}"),
        "kLand": ("Buffer<Block::kPlaced, 3>", "{Space::kArena, 0, 240, 0, {0, 0, 0}, {120, 0, 0}}"),
    }
    assert t.arena_bytes == plan.arena.bytes == 1536


def test_the_segments_of_a_reduce_scatter_worked_by_hand(proved):
    # E = 6 + 9 = 15 elements in 2 sub-slices of 8: p0 is elements 0..6, p1 6..15.
    _, t = tabled(proved, "2x2", REDUCE)
    assert rows(t, "kSegments") == ("{0, 0, 6, 0}", "{1, 0, 2, 6}", "{1, 2, 7, 0}")
    assert rows(t, "kSegmentStarts") == ("0", "2", "3")


def test_one_node_has_the_segments_of_whole_rows(proved):
    # 1x2: n_p is 4*3 = 12 and 17 elements, E = 29, E_sub = 8 in two parts of two: rows of 16 and 13.
    _, t = tabled(proved, "1x2", REDUCE, knobs=("n_part=2",))
    assert rows(t, "kSegments") == ("{0, 0, 12, 0}", "{1, 0, 4, 12}", "{1, 4, 13, 0}")
    assert rows(t, "kSegmentStarts") == ("0", "2", "3")


def test_a_cast_is_one_run_of_parameters_of_one_type(proved):
    _, t = tabled(proved, "2x2", GATHER, gathered=Dtype.BF16)
    assert rows(t, "kCasts") == ("{0, 0, 15, Dtype::kFp32, Dtype::kBf16}",)
    _, plain = tabled(proved, "2x2", GATHER)
    assert rows(plain, "kCasts") == () and dict((name, value) for value, name in plain.layout)["casts"] == "{nullptr, 0}"


@pytest.mark.parametrize("collective", [GATHER, REDUCE])
def test_tables_do_not_grow_with_the_ranks(proved, collective):
    shapes = tuple((64 * 1024, 2) for _ in range(40))
    small, large = (tabled(proved, topo, collective, shapes=shapes)[1] for topo in ("2x8", "1024x8"))
    assert sum(len(a.rows) for a in large.arrays) <= sum(len(a.rows) for a in small.arrays) <= 40 + 40 + 8 + 9


def test_offsets_past_32_bits_are_whole(proved):
    # 128 x 19,345,706 values of two bytes: the landing is 4,952,502,272 bytes, past 2**32.
    plan, t = tabled(proved, "1x8", GATHER, shapes=((19345706, 128),))
    assert plan.layout.landing_bytes == 4_952_502_272
    assert "4952502272" in next(b.value for b in t.buffers if b.name == "kLand")


def test_the_reduction_is_that_of_the_lowering(proved):
    found = [dict((n, v) for v, n in tabled(proved, "2x2", REDUCE, lowering=low)[1].layout)["reduction"] for low in Lowering]
    assert found == ["Reduction::kInOrder", "Reduction::kInSwitch"]


def test_no_number_of_the_tables_is_a_float(proved):
    for collective in Collective:
        _, t = tabled(proved, "3x2", collective)
        text = " ".join((*(r for a in t.arrays for r in a.rows), *(v for v, _ in t.layout), *(b.value for b in t.buffers)))
        assert not re.search(r"\d\.\d|\de[+-]?\d", text)
