"""What is drawn of a file, and that every file of examples/measure/results is known."""
from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

RESULTS = sorted((Path(__file__).resolve().parents[2] / "examples" / "measure" / "results").glob("*.json"))
has_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.name)
def test_what_was_measured_is_known(program, file):
    of = program("plot")
    charts = of.charts_of(of.read(file))
    assert bool(charts) == (file.name not in ("bits.json", "loopback.json", "trace.json")) and len({c.name for c in charts}) == len(charts)
    for chart in charts:
        if isinstance(chart, of.Bars):
            assert chart.labels and all(len(values) == len(chart.labels) and any(v is not None for v in values) for _, values in chart.series)


def test_a_file_of_another_form_is_named_with_what_it_has(program, tmp_path, capsys):
    file = tmp_path / "other.json"
    file.write_text('{"speed": 3}')
    assert program("plot").main([str(file), "-o", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"{file}: of no known form: it has speed\n"


def test_bars_of_calls_by_hand(program):
    """Of two CTA counts of one group stock is the same, and each has a bar."""
    row = {"group": "equal30-8MiB", "collective": "reduce_scatter", "stock_us": 100.0}
    (chart,) = program("plot").charts_of({"rows": [{**row, "us": 40.0, "ctas": 8}, {**row, "us": 30.0, "ctas": 16}]})
    assert chart.labels == ("equal30-8MiB, 8 CTAs", "equal30-8MiB, 16 CTAs") and chart.series == (("stock", (100, 100)), ("plan", (40, 30)))


def test_a_sweep_becomes_lines_over_sizes(program):
    rows = [{"group": f"equal{p}-{size}MiB", "collective": "all_gather", "stock_us": 2.0 * size, "us": 1.0 * p, "ctas": None} for p in (1, 9) for size in (8, 1, 32)]
    bars, lines = program("plot").charts_of({"rows": rows})
    assert lines.series == (("1 equal", ((1, 2), (8, 16), (32, 64))), ("9 equal", ((1, 2 / 9), (8, 16 / 9), (32, 64 / 9)))) and len(bars.labels) == 6


def test_what_programs_write_is_drawn(program):
    of = program("plot")
    slower = {"kernel": "GEMM", "collective": "all_gather", "by": "plan", "ctas": None, "slower_percent": 3.0, "slower_us_per_gb": 9.0}
    assert [c.series for c in of.charts_of({"schema": "tidec.interference/1", "rows": [slower]})] == [(("all-gather, plan", (3.0,)),), (("all-gather, plan", (9.0,)),)]
    sm = {"group": "g", "collective": "all_gather", "by": "stock", "ctas": None, "sm_us": 4000.0, "allocated_bytes": 2**20}
    assert [c.series for c in of.charts_of({"schema": "tidec.sm_time/1", "rows": [sm]})] == [(("stock", (4.0,)),), (("stock", (1.0,)),)]
    taken = {"collective": "all_gather", "by": "plan", "ctas": None, "taken_mean": 2.5, "late_us": 1.5}
    assert [(c.of, c.series) for c in of.charts_of({"schema": "tidec.sm_probe/1", "sms": 132, "rows": [taken]})] == [("of 132", (("plan", (2.5,)),)), ("us later than beside nothing", (("plan", (1.5,)),))]
    points = [{"point": "1b:8192", "by": by, "step_ms": 7.0, "peak_bytes": 2**30} for by in ("stock", "in_place")]
    assert [c.labels for c in of.charts_of({"schema": "tidec.steps/1", "points": points})] == [("1b:8192",)] * 2
    events = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "stock, p"}}, {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1, "args": {"name": "stream 7"}},
              {"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "pid": 0, "tid": 1, "ts": 1000.0, "dur": 500.0}]
    (chart,) = of.charts_of({"schema": "tidec.step_trace/1", "point": "p", "traceEvents": events})
    assert chart.rows == ("stock: stream 7",) and chart.boxes == ((0, 1.0, 0.5, "collective"),)


@has_matplotlib
@pytest.mark.parametrize("name", ["pair.json", "kernels.json"])
def test_equal_files_give_equal_plots(program, tmp_path, name):
    of = program("plot")
    (file,) = [f for f in RESULTS if f.name == name]
    for where in ("a", "b"):
        assert of.main([str(file), "-o", str(tmp_path / where)]) == 0
    first, second = ({f.name: f.read_bytes() for f in (tmp_path / where).iterdir()} for where in ("a", "b"))
    assert first == second and len(first) == len(of.charts_of(json.loads(file.read_text()))) and all(b"<svg" in svg for svg in first.values())
