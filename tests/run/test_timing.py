"""Which calls are timed in which order, and what is kept of them."""
from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tidec.errors import TidecError  # noqa: E402
from tidec.run.timing import Gate, Took, Wall, finish, rounds  # noqa: E402


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


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that is none: `gpu(opens=3)` holds its stream at the third gate only. Gives the cycles of each."""

    def made(*, opens: int) -> list[int]:
        slept: list[int] = []

        class Event:
            def __init__(self, enable_timing: bool = False):
                self.is_timing = enable_timing

            def record(self):
                pass

            def query(self):
                return len(slept) < opens if self.is_timing else opens > 0

            def elapsed_time(self, end):
                return 5.0

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        return slept

    return made


def test_a_gate_that_opened_too_soon_is_made_longer(alone, gpu):
    slept, made = gpu(opens=3), []
    took = Gate(alone, torch.device("cpu"), deadline_s=1, why=lambda: None)(lambda: made.append(1), 10)
    assert [c // slept[0] for c in slept] == [1, 2, 4] and len(made) == 30 and took.seconds == 5e-4 and 0 < took.host_seconds < 1e-2


def test_a_queue_that_never_takes_all_calls_is_told(alone, gpu):
    gpu(opens=100)
    with pytest.raises(TidecError, match="--calls"):
        Gate(alone, torch.device("cpu"), deadline_s=1, why=lambda: None)(lambda: None, 10)


def test_what_does_not_end_is_told_with_why_where_somebody_knows(gpu):
    def why():
        raise RuntimeError("rank 0.1 waits")

    gpu(opens=0)
    with pytest.raises(RuntimeError, match="rank 0.1 waits"):
        finish(0.01, why)
    with pytest.raises(TidecError, match="not over after 0.01 s"):
        finish(0.01, lambda: None)
