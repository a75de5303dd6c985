#!/usr/bin/env python3
"""How much slower a kernel is while collectives go on beside it: tidec's, and the stock ones of FSDP2, in one run.

    python examples/measure/interference.py BUNDLE [--group NAME] [--ctas 16,8] [--rounds 8] [-o interference.json]
    torchrun --nproc-per-node 2 examples/measure/interference.py BUNDLE
    python examples/measure/interference.py BUNDLE --target host --rounds 2        sees that it runs: processes, threads, and small kernels

BUNDLE: of a group whose shard is what each call moves, as `tidec compile --topo 1x2 --group FILE -o BUNDLE` or, from Python, `equal_groups("30:32MiB", ranks=2)` makes it.
Three kernels are timed alone and beside repeated calls: a GEMM of one wave (256x8192x8192), one of many (8192^3), and one that is bound by memory (256 MiB read and
256 MiB written). A kernel is launched again and again for some milliseconds, on a stream of usual priority; the calls are on an urgent one, as FSDP2's are, and both
stand behind one gate on every rank. Calls go on until after the last launch, or the row says that they do not (`is_covered`). Rounds take all sides in both orders;
medians of the slowest rank are told. Stock's all-gather is NCCL's and the copy-out, its reduce-scatter `chunk_cat` and NCCL's in fp32, with buffers that are there before.

Writes: `idle`, a row a kernel with the spread of its rounds alone; `rows`, a row a kernel and side: how much longer a launch takes in percent, and for each GB that a rank
received meanwhile (of parameters or gradients in the plan's type, so that stock's fp32 counts as what it carries), beside what a call takes alone and beside the kernel.
"""
from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from ranks import Opened, gathered, measured_by, of_bundle
from windows import MAX_CALLS, Call, Side, Window, covered, nothing, sides, windows_of

from tidec.inputs.ask import Collective
from tidec.run.beside import Here
from tidec.run.bench_rank import machine_of

# Of a window: how long it should be, and how much longer the calls should go on than the kernel takes alone.
WINDOW_S, BEYOND, EXTRA_CALLS = 3e-3, 1.5, 2


def calls_by(ends_s: Sequence[float], until_s: float) -> float:
    """How many calls were over by then; of the one that was under way the part of its time that had passed."""
    over = sum(end <= until_s for end in ends_s)
    if over == len(ends_s):
        return float(over)
    begin = ends_s[over - 1] if over else 0.0
    return over + (until_s - begin) / (ends_s[over] - begin)


def kernels(here: Here) -> dict[str, Call]:
    """What is slowed down; on the host much smaller."""
    dtype, (rows, dim, elems) = (torch.bfloat16, (256, 8192, 128 << 20)) if here.device.type == "cuda" else (torch.float32, (32, 256, 1 << 20))
    random = here.generator()

    def made(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, device=here.device).to(dtype)

    few, many, weights, line = made(rows, dim), made(dim, dim), made(dim, dim), made(elems)
    few_out, many_out, line_out = torch.empty_like(few), torch.empty_like(many), torch.empty_like(line)
    return {
        f"GEMM {rows}x{dim}x{dim}": lambda: torch.mm(few, weights, out=few_out), f"GEMM {dim}^3": lambda: torch.mm(many, weights, out=many_out),
        f"elementwise {line.nbytes >> 20} MiB": lambda: torch.mul(line, 1.5, out=line_out)}


def measured(windows: Callable[..., Window], kernel: Call, made: Sequence[Side], *, rounds: int, here: Here) -> tuple[list[Window], dict[str, list[Window]], int]:
    """Windows of a kernel alone and beside every side, one a round after one that warms up, of the rank that was slowest; and the launches in each."""
    windows(kernel, 3, nothing, 0)
    one_s = max(gathered(windows(kernel, 3, nothing, 0).kernel_s / 3, here))
    launches = max(2, math.ceil(WINDOW_S / one_s))
    calls, alone, found = {}, [], {s.name: [] for s in made}
    for s in made:
        calls[s.name] = min(MAX_CALLS, EXTRA_CALLS + math.ceil(BEYOND * launches * one_s / max(gathered(windows(nothing, 0, s.call, 8).call_s, here))))
    for i in range(rounds + 1):
        for s in (None, *made) if i % 2 else (*made[::-1], None):
            every, taken = covered(windows, kernel, launches, nothing if s is None else s.call, 0 if s is None else calls[s.name], here)
            if s is not None:
                calls[s.name] = taken
            if i:
                (alone if s is None else found[s.name]).append(max(every, key=lambda w: w.kernel_s))
    return alone, found, launches


def spread_percent(values: Sequence[float]) -> float:
    """How far the highest is above the lowest, of the median."""
    return 100 * (max(values) - min(values)) / statistics.median(values)


def row(kernel: str, side: Side, alone: Sequence[Window], windows: Sequence[Window], launches: int, call_alone_s: float) -> dict[str, object]:
    """What is told of a kernel beside a side."""
    idle_s, beside_s = (statistics.median(w.kernel_s for w in found) for found in (alone, windows))
    moved_gb = statistics.median(calls_by(w.ends_s, w.kernel_s) for w in windows) * side.bytes / 1e9
    return {
        "kernel": kernel, "collective": side.collective, "by": side.by, "ctas": side.ctas or None, "launches": launches, "calls": len(windows[-1].ends_s),
        "alone_us": 1e6 * idle_s / launches, "beside_us": 1e6 * beside_s / launches, "slower_percent": 100 * (beside_s / idle_s - 1), "moved_gb": moved_gb,
        "slower_us_per_gb": 1e6 * (beside_s - idle_s) / moved_gb, "spread_percent": spread_percent([w.kernel_s for w in windows]),
        "call_alone_us": 1e6 * call_alone_s, "call_beside_us": 1e6 * statistics.median(w.call_s for w in windows),
        "is_covered": all(w.is_covered for w in windows), "is_held": all(w.is_held for w in windows), "rounds_us": [round(1e6 * w.kernel_s / launches, 2) for w in windows]}


def text(rows: Sequence[Mapping]) -> str:
    """A line a row."""
    return "\n".join(
        f"{r['kernel']:22} {r['collective']:14} {r['by']:5} {r['ctas'] or '-':>3} CTAs  {r['alone_us']:9.1f} -> {r['beside_us']:9.1f} us  {r['slower_percent']:+7.1f} %  "
        f"{r['slower_us_per_gb']:8.1f} us a GB  a call {r['call_alone_us']:7.1f} -> {r['call_beside_us']:7.1f} us{'' if r['is_covered'] else '  NOT COVERED'}" for r in rows)


def measure(options, here: Here, found: Opened) -> None:
    group = options.group or found.bundle.groups[0].name
    made, nodes = sides(found, group, [int(c) for c in options.ctas.split(",")], here)
    windows = windows_of(here, nodes)
    machine = machine_of(here)
    told: dict[str, object] = {
        "schema": "tidec.interference/1", "machine": machine, "group": group, "shard_bytes": made[0].bytes // (here.control.size() - 1), "ranks": here.control.size(), "rounds": options.rounds,
        "target": options.target, "budget_ctas": found.plan_of(group, Collective.REDUCE_SCATTER)[1], "idle": [], "rows": []}
    alone_s: dict[str, list[float]] = {s.name: [] for s in made}
    for i in range(options.rounds + 1):
        for s in made if i % 2 else made[::-1]:
            took = max(gathered(windows(nothing, 0, s.call, 12).call_s, here))
            alone_s[s.name] += [took] if i else []
    for name, kernel in kernels(here).items():
        alone, beside_each, launches = measured(windows, kernel, made, rounds=options.rounds, here=here)
        idle = [w.kernel_s / launches for w in alone]
        told["idle"].append({"kernel": name, "us": 1e6 * statistics.median(idle), "spread_percent": spread_percent(idle), "rounds_us": [round(1e6 * s, 2) for s in idle]})
        rows = [row(name, s, alone, beside_each[s.name], launches, statistics.median(alone_s[s.name])) for s in made]
        told["rows"] += rows
        if here.rank == 0:
            Path(options.out).write_text(json.dumps(told, indent=1) + "\n", encoding="ascii")
            print(f"{name} alone: {told['idle'][-1]['us']:.1f} us, spread {told['idle'][-1]['spread_percent']:.1f} %\n{text(rows)}", flush=True)


def main(given: Sequence[str]) -> int:
    parser = of_bundle(__doc__, out="interference.json")
    parser.add_argument("--group", default="", help="whose collectives (default: the first of the bundle)")
    parser.add_argument("--rounds", type=int, default=8, help="of every side, in both orders (default: 8)")
    return measured_by(__file__, given, parser, measure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
