"""How much slower a kernel is beside collectives: what is made of times, by hand, and that the program runs."""
from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")


def test_of_the_call_that_is_under_way_the_part_that_has_passed_counts(program):
    calls_by = program("interference").calls_by
    assert calls_by((1.0, 2.0, 4.0), 3.0) == pytest.approx(2.5) and calls_by((1.0, 2.0), 2.0) == 2.0
    assert calls_by((1.0, 2.0), 9.0) == 2.0 and calls_by((2.0,), 0.5) == pytest.approx(0.25)


def test_a_row_by_hand(program):
    """Ten launches take 1 ms alone and 1.5 ms beside calls of 0.5 ms that move 2 GB each: half longer, and 83 us for each of the 6 GB."""
    of = program("interference")
    side = of.Side("all_gather", "plan", 0, 2 * 10**9, lambda: None)
    alone, busy = of.Window(1e-3, ()), of.Window(1.5e-3, (0.5e-3, 1e-3, 1.5e-3, 2e-3))
    row = of.row("k", side, [alone] * 3, [busy] * 3, 10, 0.4e-3)
    assert row["alone_us"] == pytest.approx(100) and row["beside_us"] == pytest.approx(150) and row["slower_percent"] == pytest.approx(50)
    assert row["moved_gb"] == pytest.approx(6) and row["slower_us_per_gb"] == pytest.approx(500 / 6) and row["call_beside_us"] == pytest.approx(500)
    assert row["is_covered"] and row["is_held"] and row["ctas"] is None and row["calls"] == 4


def test_calls_that_end_before_the_kernel_do_not_cover_it(program):
    of = program("interference")
    assert not of.Window(2e-3, (1e-3, 1.9e-3)).is_covered and of.Window(2e-3, (1e-3, 2e-3)).is_covered and of.Window(2e-3, ()).is_covered


def test_the_spread_is_from_lowest_to_highest(program):
    assert program("interference").spread_percent([1.0, 2.0, 2.5]) == pytest.approx(75)


def check(told: dict, ctas: list, num_kernels: int = 3) -> None:
    assert [(r["collective"], r["by"], r["ctas"]) for r in told["rows"]] == ctas * num_kernels and told["budget_ctas"] == 12
    assert len(told["idle"]) == num_kernels and all(len(r["rounds_us"]) == 2 and r["alone_us"] > 0 < r["beside_us"] for r in told["rows"])


def test_it_runs_on_processes_of_this_machine(small_bundle, ran, tmp_path):
    said = ran("interference.py", small_bundle, "--target", "host", "--rounds", 2)
    check(json.loads((tmp_path / "interference.json").read_text()), [(c, by, None) for c in ("all_gather", "reduce_scatter") for by in ("stock", "plan")])
    assert said.count("alone") == 3


@pytest.mark.slow
def test_what_only_gpus_come_to_runs_too(small_bundle, ran, tmp_path):
    ran("interference.py", small_bundle, "--rounds", 2, "--group", "head", as_gpu=True)
    told = json.loads((tmp_path / "interference.json").read_text())
    check(told, [("all_gather", "stock", None), ("all_gather", "plan", None), ("reduce_scatter", "stock", None), *(("reduce_scatter", "plan", n) for n in (16, 8, 12))])
    assert told["group"] == "head" and told["machine"]["gpus"] == ["no GPU"] * 2
