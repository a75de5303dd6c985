"""Which calls are timed in which order, and what is kept of them."""
from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tidec.run.timing import Took, Wall, rounds  # noqa: E402


@pytest.fixture
def alone(tmp_path: Path):
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def test_sides_begin_in_turn_and_the_first_round_is_not_counted(alone):
    made: list[str] = []
    told: list[int] = []

    def timer(call, calls):
        call()
        return Took(len(made) * calls, 1.0)

    found = rounds(timer, {"stock": lambda: made.append("s"), "plan": lambda: made.append("p")}, calls=10, num=3, control=alone, tell=told.append)
    assert "".join(made) == "ps" "sp" "ps" "sp" and told == [0, 1, 2, 3]
    assert [t.seconds for t in found["stock"]] == [30, 60, 70] and [t.seconds for t in found["plan"]] == [40, 50, 80]


def test_of_every_round_the_slowest_rank_counts(alone, monkeypatch):
    def gathered(mine, control):
        return [mine, {name: [Took(8.0, 0.5), Took(1.0, 0.5)] for name in mine}]

    monkeypatch.setattr("tidec.run.timing._gathered", gathered)
    found = rounds(lambda call, calls: Took(4.0, 2.0), {"stock": None, "plan": None}, calls=1, num=2, control=alone, tell=lambda i: None)
    assert found["plan"] == (Took(8.0, 2.0), Took(4.0, 2.0))


def test_a_wall_clock_counts_a_call_of_many(alone):
    made = []
    assert 0 < Wall(alone)(lambda: made.append(1), 100).seconds < 1 and len(made) == 100
