#!/usr/bin/env python3
"""Draws what was measured: one or more SVG files for each JSON file that a program of this folder, or `tidec bench -o`, has written.

    python examples/measure/plot.py examples/measure/results/*.json -o plots        needs matplotlib: pip install -e '.[plot]'

Knows a file by what stands in it, not by its name. One that holds bits and counts but nothing to draw is named; one that it does not know is an error, exit 1.
Equal files give equal plots.
"""
from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_COLOURS = {"stock": "#8c8c8c", "plan": "#1f6fb2", "in_place": "#1f6fb2", "slot_reuse": "#2a9d5c", "all_gather": "#1f6fb2", "reduce_scatter": "#c8553d"}
_OTHERS = ("#1f6fb2", "#c8553d", "#2a9d5c", "#8a5fb0", "#d9a520", "#3b3b3b", "#5fb0a8", "#b05f8a")
_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True, slots=True)
class Bars:
    """Groups of bars. series: of each name a value for each label; `None` = no bar."""

    name: str
    title: str
    of: str
    labels: tuple[str, ...]
    series: tuple[tuple[str, tuple[float | None, ...]], ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over numbers, on a logarithmic axis."""

    name: str
    title: str
    of: str
    over: str
    series: tuple[tuple[str, tuple[tuple[float, float], ...]], ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Boxes in rows. boxes: row, begin and length in ms, and what it is: "work", "collective" or "mark"."""

    name: str
    title: str
    rows: tuple[str, ...]
    boxes: tuple[tuple[int, float, float, str], ...]


Chart = Bars | Lines | Timeline


def bars(name: str, title: str, of: str, cells: Sequence[tuple[str, str, float | None]]) -> Bars:
    """Bars of cells: a label, a series, a value."""
    labels, series = (tuple(dict.fromkeys(c[i] for c in cells)) for i in (0, 1))
    at = {c[:2]: c[2] for c in cells}
    return Bars(name, title, of, labels, tuple((s, tuple(at.get((label, s)) for label in labels)) for s in series))


def _of_calls(content: Mapping) -> Iterator[Chart]:
    """`tidec bench`, and rows that were written down from it; those of made-up groups of several sizes as lines."""
    for collective in dict.fromkeys(r["collective"] for r in content["rows"]):
        rows = [r for r in content["rows"] if r["collective"] == collective]
        ours = "us" if "us" in rows[0] else "ours_us"
        cells: dict[tuple[str, str], float] = {}
        for r in rows:
            label = r["group"] + (f", {r['ctas']} CTAs" if r.get("ctas") else "")
            cells.setdefault((label, "stock"), r["stock_us"])
            cells[label, "plan"] = min(r[ours], cells.get((label, "plan"), r[ours]))
        yield bars(collective, f"{_spelt(collective)} of a group", "us a call", [(*where, us) for where, us in cells.items()])
        lines: dict[str, list[tuple[float, float]]] = {}
        for r in rows:
            made = re.fullmatch(r"(un)?equal(\d+)-(\d+)(KiB|MiB|GiB)", r["group"])
            if made:
                lines.setdefault(f"{made[2]} {'un' if made[1] else ''}equal" + (f", {r['ctas']} CTAs" if r.get("ctas") else ""), []).append((int(made[3]) * _UNITS[made[4]] / 2**20, r["stock_us"] / r[ours]))
        if any(len(points) > 2 for points in lines.values()):
            yield Lines(f"{collective}_sizes", f"{_spelt(collective)}: how many times as long stock takes", "times", "MiB of a rank's shard", tuple((n, tuple(sorted(p))) for n, p in lines.items()))


def _of_interference(content: Mapping) -> Iterator[Chart]:
    rows = [(r, f"{_spelt(r['collective'])}, {'stock' if r['by'] == 'stock' else 'plan'}" + (f", {r['ctas']} CTAs" if r["ctas"] else "")) for r in content["rows"]]
    yield bars("slower", "a kernel beside repeated collectives", "% longer than alone", [(r["kernel"], side, r["slower_percent"]) for r, side in rows])
    yield bars("slower_per_gb", "a kernel beside repeated collectives", "us longer for each GB received", [(r["kernel"], side, r["slower_us_per_gb"]) for r, side in rows])


def _of_sm_time(content: Mapping) -> Iterator[Chart]:
    for collective in dict.fromkeys(r["collective"] for r in content["rows"]):
        rows = [(r, r["by"] + (f", {r['ctas']} CTAs" if r["ctas"] else "")) for r in content["rows"] if r["collective"] == collective]
        yield bars(f"{collective}_sm", f"{_spelt(collective)}: multiprocessors x time of its kernels", "SM ms a call", [(r["group"], side, r["sm_us"] / 1e3) for r, side in rows])
        yield bars(f"{collective}_memory", f"{_spelt(collective)}: buffers of stock, arena of the plan", "MiB",
                   [(r["group"], r["by"], r.get("arena_bytes", r.get("allocated_bytes", 0)) / 2**20) for r, _ in rows])


def _of_sm_probe(content: Mapping) -> Iterator[Chart]:
    rows = [(_spelt(r["collective"]), r["by"] + (f", {r['ctas']} CTAs" if r["ctas"] else ""), r) for r in content["rows"]]
    yield bars("taken", "multiprocessors taken at once, in the mean", f"of {content['sms']}", [(collective, side, r["taken_mean"]) for collective, side, r in rows])
    yield bars("late", "a kernel that wants all multiprocessors", "us later than beside nothing", [(collective, side, r["late_us"]) for collective, side, r in rows])


def _of_steps(content: Mapping) -> Iterator[Chart]:
    points = content["points"]
    yield bars("steps", "a training step", "ms", [(p["point"], p["by"], p["step_ms"]) for p in points])
    yield bars("peak", "peak memory from the third step on, arenas counted", "GiB", [(p["point"], p["by"], p["peak_bytes"] / 2**30) for p in points])


def _of_runs(content: Mapping) -> Iterator[Chart]:
    def label(r: Mapping) -> str:
        return f"{r['size']}, {r['tokens_a_rank']}" + "".join(f", {w}" for w in ("checkpoint", "prefetch", "evaluate") if r[w])

    yield bars("steps", "a training step", "ms", [(label(r), r["by"], r["step_ms"]) for r in content["runs"]])
    yield bars("peak", "peak memory from the third step on, arenas counted", "GiB", [(label(r), r["by"], (r["peak_bytes"] + r["arena_bytes"]) / 2**30) for r in content["runs"]])


def _of_sums(content: Mapping) -> Iterator[Chart]:
    named = [(f"{r.get('kernel', 'sum')} {r['type']}, {r['lanes']} lanes" + "".join(f", {word}" for word, is_so in (
        ("adds", r.get("adds") or r.get("accumulates")), ("shifted", r.get("own_shift") or not r.get("aligned", True))) if is_so), r["gbps_a_cta"]) for r in content["rows"] if "gbps_a_cta" in r]
    yield Lines("rates", "kernels of runtime/cuda", "GB/s a CTA, read and written", "CTAs", tuple((n, tuple(sorted((int(c), g) for c, g in by.items()))) for n, by in named))


def _of_copies(content: Mapping) -> Iterator[Chart]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for r in content["copies_while_all_multiprocessors_are_full"]["rows"]:
        if "gbps" in r:
            lines.setdefault(r["way"], []).append((r["bytes"], r["us"]))
    yield Lines("copies", "copies inside one GPU that is idle", "us", "bytes", tuple((n, tuple(sorted(p))) for n, p in lines.items()))


def _of_times(content: Mapping) -> Iterator[Chart]:
    yield bars("calls", "two nodes of a GPU each, on one machine", "us a call", [(r["group"] + "".join(f", {s}" for s in r["set"]), r["collective"], r["median_us"]) for r in content["times"]])


def _of_cpu_model(content: Mapping) -> Iterator[Chart]:
    yield bars("collectives", "all groups of a model, on the CPU", "ms", [(_spelt(c), r["what"], r[f"{c}_ms"]) for r in content["rows"] for c in ("all_gather", "reduce_scatter")])


def _of_host(content: Mapping) -> Iterator[Chart]:
    yield bars("rates", "the host target", "GB/s", [(r["what"], by, r[key] / 1e9) for r in content["rows"] for by, key in (("memcpy", "memcpy_bytes_per_s"), ("tidec", "bytes_per_s"))])


def _of_bounds(content: Mapping) -> Iterator[Chart]:
    yield bars("seconds", "commands", "s", [(b["what"].removesuffix(", seconds"), by, b[by]) for b in content["bounds"] if "seconds" in b["what"] for by in ("median", "bound")])


def _of_step_trace(content: Mapping) -> Iterator[Chart]:
    names, rows, boxes = {}, {}, []
    for e in content["traceEvents"]:
        if e["ph"] == "M":
            names[e["pid"], e.get("tid")] = e["args"]["name"]
            continue
        if e["cat"] == "cpu_op":
            continue
        key = (e["pid"], e["tid"])
        is_collective = any(word in e["name"] for word in ("nccl", "tidec", "chunk_cat", "split_with_sizes")) or e["cat"] in ("gpu_memcpy", "gpu_memset")
        kind = "mark" if e["cat"].endswith("user_annotation") else "collective" if is_collective else "work"
        boxes.append((rows.setdefault(key, len(rows)), e["ts"] / 1e3, e["dur"] / 1e3, kind))
    labels = tuple(f"{names.get((pid, None), pid).partition(',')[0]}: {names.get((pid, tid), tid)}" for pid, tid in rows)
    yield Timeline("step", f"one training step of {content['point']}", labels, tuple(boxes))


def _nothing(content: Mapping) -> Iterator[Chart]:
    """Bits that are equal, and counts."""
    yield from ()


def _is_of(*keys: str, schema: str = "", row: Sequence[str] = ()) -> Callable[[Mapping], bool]:
    def fits(content: Mapping) -> bool:
        first = (content.get("rows") or [{}])[0]
        return (not schema or content.get("schema") == schema) and all(k in content for k in keys) and all(k in first for k in row)

    return fits


FORMS: tuple[tuple[Callable[[Mapping], bool], Callable[[Mapping], Iterator[Chart]]], ...] = (
    (_is_of(schema="tidec.interference/1"), _of_interference), (_is_of(schema="tidec.sm_time/1"), _of_sm_time),
    (_is_of(schema="tidec.sm_probe/1"), _of_sm_probe), (_is_of(schema="tidec.steps/1"), _of_steps),
    (_is_of(schema="tidec.step_trace/1"), _of_step_trace), (_is_of(row=("stock_us", "group", "collective")), _of_calls), (_is_of("runs", "cases"), _of_runs),
    (_is_of(row=("gbps_a_cta",)), _of_sums), (_is_of("copies_while_all_multiprocessors_are_full"), _of_copies), (_is_of("times", "bits"), _of_times),
    (_is_of(row=("live_bytes_of_backward",)), _of_cpu_model), (_is_of(row=("memcpy_bytes_per_s",)), _of_host), (_is_of("bounds"), _of_bounds),
    (_is_of("what", row=("bits", "plan")), _nothing), (_is_of(schema="tidec.bits/1"), _nothing),
)


def charts_of(content: Mapping) -> tuple[Chart, ...]:
    """What is drawn of a file. Raises ValueError where it is of no known form."""
    for fits, draw in FORMS:
        if fits(content):
            return tuple(draw(content))
    raise ValueError(f"of no known form: it has {', '.join(map(str, content))}")


def _spelt(collective: str) -> str:
    return collective.replace("_", "-")


def _colour(name: str, number: int) -> str:
    return _COLOURS.get(name, _OTHERS[number % len(_OTHERS)])


def draw(chart: Chart, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "tidec", "font.size": 9})
    from matplotlib import pyplot

    wide = {Bars: lambda c: max(6.0, 0.22 * len(c.labels) * len(c.series) + 3), Lines: lambda c: 8.0, Timeline: lambda c: 14.0}[type(chart)](chart)
    figure, axes = pyplot.subplots(figsize=(wide, 4.5 if not isinstance(chart, Timeline) else 1.2 + 0.3 * len(chart.rows)), layout="constrained")
    axes.set_title(chart.title)
    if isinstance(chart, Bars):
        width = 0.8 / max(1, len(chart.series))
        for i, (name, values) in enumerate(chart.series):
            shown = [(x, v) for x, v in enumerate(values) if v is not None]
            axes.bar([x + (i - (len(chart.series) - 1) / 2) * width for x, _ in shown], [v for _, v in shown], width, label=name, color=_colour(name, i))
        axes.set_xticks(range(len(chart.labels)), chart.labels, rotation=20 if len(chart.labels) < 6 else 60, ha="right")
        axes.set_ylabel(chart.of)
    elif isinstance(chart, Lines):
        for i, (name, points) in enumerate(chart.series):
            axes.plot(*zip(*points), marker="o", label=name, color=_colour(name, i), linestyle="-" if i < len(_OTHERS) else "--")
        axes.set_xscale("log", base=2)
        axes.set_xlabel(chart.over)
        axes.set_ylabel(chart.of)
    else:
        colours = {"work": "#b8c4ce", "collective": "#c8553d", "mark": "#1f6fb2"}
        for kind, colour in colours.items():
            for r in range(len(chart.rows)):
                axes.broken_barh([(b, w) for at, b, w, k in chart.boxes if (at, k) == (r, kind)], (r - 0.4, 0.8 if kind != "mark" else 0.15), facecolors=colour, label=kind if r == 0 else None)
        axes.set_yticks(range(len(chart.rows)), chart.rows)
        axes.invert_yaxis()
        axes.set_xlabel("ms")
    axes.legend(fontsize=7)
    figure.savefig(path, format="svg", metadata={"Date": None})
    pyplot.close(figure)


def read(path: Path) -> Mapping:
    """A file, packed or not."""
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)


def main(given: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("plots"), help="the folder of the plots (default: plots)")
    options = parser.parse_args(given)
    options.out.mkdir(parents=True, exist_ok=True)
    is_known = True
    for file in options.files:
        try:
            charts = charts_of(read(file))
        except ValueError as problem:
            print(f"{file}: {problem}", file=sys.stderr)
            is_known = False
            continue
        for chart in charts:
            draw(chart, options.out / f"{file.name.partition('.')[0]}_{chart.name}.svg")
        print(f"{file}: {', '.join(c.name for c in charts) or 'nothing to draw'}")
    return 0 if is_known else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
