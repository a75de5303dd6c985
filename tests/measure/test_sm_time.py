"""Multiprocessors and memory of both collectives: that the program runs, where there is no GPU and as if there were one."""
from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")


@pytest.mark.slow
def test_it_runs_on_processes_of_this_machine(small_bundle, ran, tmp_path):
    ran("sm_time.py", small_bundle, "--target", "host", "--groups", "head", "--calls", 2)
    rows = json.loads((tmp_path / "sm_time.json").read_text())["rows"]
    assert [(r["collective"], r["by"], r["sm_us"]) for r in rows] == [(c, by, 0) for c in ("all_gather", "reduce_scatter") for by in ("stock", "plan")]


@pytest.mark.slow
def test_what_only_gpus_come_to_runs_too(small_bundle, ran, tmp_path):
    ran("sm_time.py", small_bundle, "--groups", "block", "--ctas", "16", as_gpu=True)
    told = json.loads((tmp_path / "sm_time.json").read_text())
    assert [(r["collective"], r["by"], r["ctas"]) for r in told["rows"]] == [
        ("all_gather", "stock", None), ("all_gather", "plan", None), ("reduce_scatter", "stock", None), ("reduce_scatter", "plan", 16), ("reduce_scatter", "plan", 12)]
    assert told["sms"] == 132 and all(r["params"] == 3 and r["arena_bytes"] > 0 for r in told["rows"] if r["by"] == "plan")
