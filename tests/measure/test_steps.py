"""Whole steps of training: what is made of what ranks measured, by hand, and that the program runs."""
from __future__ import annotations

import gzip
import json
import shutil
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")


def rank(ms: float, losses: list[float], **rest: object) -> dict:
    return {"losses": losses, "steps_ms": [50.0, 50.0, ms, ms + 2, ms + 1], "step_ms": ms + 1, "tokens": 64, "host_ms": 1.0, "peak_bytes": 100, "reserved_bytes": 200, "taken_bytes": 300,
            "digest": "d", **rest}


def ours(ms: float, losses: list[float], **rest: object) -> dict:
    return rank(ms, losses, arena_bytes=30, by_plan=9, stock_calls={}, is_as_planned=True, **rest)


def test_a_point_is_read_and_spelt_alike(program):
    of = program("steps")
    for text in ("1b:8192", "1b:32768:checkpoint", "small:1024:exact", "small:1024:checkpoint:exact"):
        assert of.read_point(text).name == text
    for text in ("2b:8192", "1b:8192:exactly", "1b:many"):
        with pytest.raises(ValueError):
            of.read_point(text)
    assert [of.read_point(p).name for p in of.POINTS.split(",")] == of.POINTS.split(",")


def test_of_ranks_the_slowest_counts_and_the_most_memory(program):
    of = program("steps")
    row = of.row_of(of.read_point("tiny:64"), "in_place", 1, [ours(10.0, [3.0, 1.0]), ours(12.0, [1.0, 2.0], peak_bytes=150)])
    assert row["step_ms"] == 13 and row["peak_bytes"] == 150 and row["arena_bytes"] == 30 and row["losses"] == [2.0, 1.5] and row["is_as_planned"] and row["bits"] is None


def test_what_follows_from_both_orders_by_hand(program):
    """Stock takes 21 and 23 ms, its losses 0.25 apart; in place 11 ms, 0.125 from the nearer of stock's, and 30 bytes of arena beyond stock's peak."""
    of = program("steps")
    point = of.read_point("tiny:64:exact")
    stock = [of.row_of(point, "stock", i, [rank(ms, [2.0, loss])]) for i, (ms, loss) in enumerate(((20.0, 1.0), (22.0, 1.25)))]
    mine = [of.row_of(point, "in_place", i, [ours(10.0, [2.0, 1.125])]) for i in range(2)]
    line = {p["by"]: p for p in of.compared([*stock, *mine])}
    assert line["stock"]["step_ms"] == 22 and line["in_place"]["step_ms"] == 11 and line["in_place"]["times_faster"] == 2 and line["in_place"]["repeats"] == 2
    assert line["stock"]["loss_apart"] == 0.25 and line["in_place"]["loss_apart"] == 0.125 and line["in_place"]["peak_beyond_stock_bytes"] == 30
    assert line["in_place"]["repeats_have_equal_bits"] and not line["in_place"]["bits_are_stocks"] and not line["stock"]["repeats_have_equal_bits"]
    alike = of.compared([*stock[:1], of.row_of(point, "slot_reuse", 0, [ours(10.0, [2.0, 1.0])])])
    assert alike[1]["bits_are_stocks"] and alike[0]["loss_apart"] is None and all(map(of.text, alike))


def test_what_is_asked_of_the_training_is_what_it_takes(program):
    of = program("steps")
    asked = SimpleNamespace(target="nccl", deadline=60.0, bundles="plans")
    for point in map(of.read_point, of.POINTS.split(",")):
        for side in of.SIDES:
            options = of.train_fsdp2.arguments().parse_args(of.training(point, side, asked, steps=10))
            assert (options.tidec, options.checkpoint, options.round_gradients) == (side != "stock", point.is_checkpointed, point.is_exact) and options.device == "cuda"
            assert side == "stock" or (options.plans, options.mode, options.require) == (f"plans/{point.size}", side, True)


@pytest.mark.slow
def test_all_sides_train_the_same_bits_and_are_traced(tiny_plans, ran, tmp_path):
    ran("steps.py", "--target", "host", "--points", "tiny:64:exact,tiny:64:checkpoint:exact", "--steps", 3, "--bundles", tiny_plans)
    told = json.loads((tmp_path / "steps.json").read_text())
    assert len(told["rows"]) == 12 and not told["failed"] and all(p["bits_are_stocks"] and p["repeats_have_equal_bits"] for p in told["points"]) and len(told["points"]) == 6
    assert all(r["is_as_planned"] and r["calls_stock"] == {} for r in told["rows"] if r["by"] != "stock")
    ran("steps.py", "--target", "host", "--points", "tiny:64", "--bundles", tiny_plans, "--trace", "step.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "step.json.gz").read_bytes()))["traceEvents"]
    marks = [{e["name"].partition(" ")[0] for e in events if e["ph"] == "X" and e["pid"] == pid} for pid in range(3)]
    assert "FSDP::all_gather" in marks[0] and not any(m.startswith("tidec::") for m in marks[0])
    assert all({"tidec::all_gather", "tidec::land", "tidec::reduce_scatter"} <= marks[pid] for pid in (1, 2))


@pytest.mark.slow
def test_a_point_that_fails_is_told_and_the_next_one_runs(tiny_plans, ran, tmp_path):
    """The plans of one size do not move the parameters of another."""
    shutil.copytree(tiny_plans / "tiny", tmp_path / "plans" / "small")
    shutil.copytree(tiny_plans / "tiny", tmp_path / "plans" / "tiny")
    with pytest.raises(AssertionError, match="exit code 1"):
        ran("steps.py", "--target", "host", "--points", "small:256,tiny:64", "--steps", 3, "--bundles", tmp_path / "plans")
    told = json.loads((tmp_path / "steps.json").read_text())
    assert told["failed"] == [{"point": "small:256", "exit": 1}] and len([r for r in told["rows"] if r["point"] == "tiny:64"]) == 6
