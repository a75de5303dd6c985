"""Made-up groups: sizes as they are asked for, and what is refused."""
from __future__ import annotations

import pytest

from tidec.errors import TidecError
from tidec.inputs.signature import Group
from tidec.inputs.synthetic import equal_groups, unequal_groups
from tidec.plan.layout import lay_out


def shapes(group: Group) -> list[tuple[int, ...]]:
    return [p.shape for p in group.params]


def test_three_equal_parameters_of_24_bytes_a_rank():
    (group,) = equal_groups("3:24", ranks=2)
    assert group.name == "equal3-24" and shapes(group) == [(2, 4)] * 3 and lay_out(group, 2).shard_bytes == 24


def test_a_group_is_as_near_below_what_is_asked_for_as_rows_allow():
    for group, mib in zip(equal_groups("30:128MiB,30:32MiB, 30:8MiB", ranks=2), (128, 32, 8), strict=True):
        layout = lay_out(group, 2)
        assert mib * 2**20 - 30 * 4096 < layout.shard_bytes <= mib * 2**20 and layout.pad_bytes == 0 and len(layout.params) == 30
    for group, mib in zip(unequal_groups("30:32MiB,30:8MiB", ranks=4), (32, 8), strict=True):
        layout = lay_out(group, 4)
        assert mib * 2**20 - 30 * 4096 < layout.shard_bytes <= mib * 2**20 and layout.pad_bytes == 0


def test_unequal_sizes_are_those_of_a_block_block_after_block():
    (group,) = unequal_groups("12:32MiB", ranks=2)
    rows = [s[0] // 2 for s in shapes(group)]
    assert rows[7:9] == [1, 1] and rows[:3] == rows[9:] and rows[4] == rows[5] == rows[6]
    assert rows[0] / rows[1] == pytest.approx(4, rel=0.01) and rows[4] / rows[0] == pytest.approx(3.5, rel=0.01)


@pytest.mark.parametrize("text", ["", "30", "30:", ":8MiB", "0:8MiB", "257:8MiB", "30:8mb", "-1:8MiB", "30:59", "1:1025GiB", "30:8MiB,", "30:8.5MiB"])
def test_what_is_no_group_is_refused(text):
    for make in (equal_groups, unequal_groups):
        with pytest.raises(TidecError, match="P001"):
            make(text, ranks=2)
