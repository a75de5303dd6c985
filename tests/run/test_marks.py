"""Ranges for a profiler: with one they have the group's name, without one there is nothing."""
from __future__ import annotations

import pytest

pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile  # noqa: E402

from tidec.run.marks import marked  # noqa: E402


def test_a_range_is_there_while_a_profiler_runs_and_nothing_is_made_else():
    assert marked("land", "layers.0") is marked("reduce_scatter", "layers.1")
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        with marked("land", "layers.0"):
            pass
    with marked("land", "layers.1"):
        pass
    assert [e.name for e in seen.events()] == ["tidec::land (layers.0)"]
