"""Regions are aligned, disjoint and exactly as large as what lies in them."""
import dataclasses

import pytest

from tidec.errors import TidecError
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.plan.arena import ALIGNMENT_BYTES, Arena, Region, check_arena, lay_arena, row_major, stored_bytes, stored_starts
from tidec.plan.layout import lay_out
from tidec.schedule.catalog import traced
from tidec.schedule.branch import branch

GROUP = Group("g", 1, (Parameter("a", (5, 4), Dtype.BF16), Parameter("b", (3,), Dtype.BF16)))


def arena_of(name: str, nodes: int, lanes: int, *, num_parts: int = 1, has_cast: bool = False, item: int = 2, **knobs) -> Arena:
    program = branch(traced(name, lanes, **knobs), nodes)
    return lay_arena(program, lay_out(GROUP, nodes * lanes), nodes=nodes, num_parts=num_parts, grad_item_bytes=item, has_cast=has_cast)


def placed(arena: Arena) -> list[tuple[str, int, int]]:
    return [(r.name, r.offset, r.bytes) for r in arena.regions]


def test_an_all_gather_worked_by_hand():
    # 3x2: R = 1 and 1, s = 8 and 2, S = 10, a landing 60, two slots of stage beside the own shard.
    arena = arena_of("tide_ag", 3, 2)
    assert placed(arena) == [("landing", 0, 120), ("resident_shard", 512, 10), ("stage", 1024, 20)]
    assert (arena.bytes, arena.staging_bytes) == (1536, 20)
    assert arena.regions[2].lows == (1,) and arena.regions[0].strides == (60,)


def test_an_all_gather_with_one_landing_has_the_other_one_less():
    assert placed(arena_of("tide_ag", 3, 2, landings=1)) == [("landing", 0, 60), ("resident_shard", 512, 10), ("stage", 1024, 20)]


def test_a_cast_keeps_the_resident_shard_outside_and_stages_the_own_slot():
    arena = arena_of("tide_ag", 3, 2, has_cast=True, cast=True)
    assert placed(arena) == [("landing", 0, 120), ("stage", 512, 30)] and arena.regions[1].lows == (0,)
    assert arena_of("tide_ag", 1, 2, has_cast=True, cast=True).staging_bytes == 24 + 4


def test_a_reduce_scatter_worked_by_hand():
    # 3x2: E = 4 + 1, E_sub = 8; a slice is 2 rows of 8 values. Two slots of two lanes, two banks of two blocks and of one, two generations of two.
    arena = arena_of("tide_rs", 3, 2, W=2, k=2)
    assert placed(arena) == [("stage", 0, 2 * 2 * 32), ("outbox", 512, 2 * 2 * 64), ("spare", 1024, 2 * 64), ("inbox", 1536, 2 * 2 * 64)]
    assert (arena.bytes, arena.staging_bytes) == (2048, 128 + 256 + 128 + 256)
    assert arena.regions[1].strides == (128, 64) and arena.regions[1].extents == (2, 2)
    assert placed(arena_of("tide_rs", 1, 2, W=2, k=2, item=4)) == [("row_stage", 0, 2 * 2 * 64)]


def test_parts_and_a_partial_outbox_have_their_blocks():
    arena = arena_of("tide_rs", 5, 2, num_parts=2, W=2, k=2, n_part=2, n_out=3, n_stg=1)
    assert [r.extents for r in arena.regions] == [(1, 2), (2, 3), (2, 2), (2, 2)]


def test_with_one_lane_nothing_is_staged_for_others():
    assert [r.bytes for r in arena_of("tide_rs", 3, 1, W=1, k=1).regions if r.name == "stage"] == [0]
    assert arena_of("tide_rs", 1, 1, W=1, k=1).bytes == 0


def test_a_stored_shard_begins_each_parameter_at_its_item_size():
    group = Group("g", 1, (Parameter("a", (3, 1), Dtype.BF16), Parameter("b", (2, 2), Dtype.FP32), Parameter("c", (1,), Dtype.BF16)), param_dtype=Dtype.BF16)
    layout, stored = lay_out(group, 1), tuple(p.dtype for p in group.params)
    assert stored_starts(layout, stored) == (0, 8, 24) and stored_bytes(layout, stored) == 26


def test_strides_are_row_major():
    assert row_major((2, 3, 4), 10) == (120, 40, 10)


def broken(*regions: tuple[str, int, int], size: int = 2048) -> str:
    with pytest.raises(TidecError) as caught:
        check_arena(Arena(tuple(Region(name, name, offset, length, True, (0,), (1,), (length,)) for name, offset, length in regions), size))
    return str(caught.value)


def test_a_broken_arena_is_refused_with_its_regions(golden):
    golden("plan/arena-broken.txt", "\n\n".join([
        broken(("a", 0, 600), ("b", 512, 10)), broken(("a", 0, 10), ("b", 16, 10)), broken(("a", 0, 10), ("a", 512, 10)), broken(("a", 0, 3000)),
        broken(("a", 0, -1)),
    ]) + "\n")


def test_regions_are_aligned_and_in_order():
    for arena in (arena_of("tide_ag", 7, 3), arena_of("tide_rs", 7, 3, W=3, k=2), arena_of("tide_rs", 1, 3, W=3, k=2)):
        assert all(r.offset % ALIGNMENT_BYTES == 0 for r in arena.regions) and arena.bytes % ALIGNMENT_BYTES == 0
        assert [r.offset for r in arena.regions] == sorted(r.offset for r in arena.regions)
        check_arena(arena)
        with pytest.raises(TidecError, match="V402"):
            check_arena(dataclasses.replace(arena, bytes=arena.regions[-1].offset))
