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
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from ranks import Opened, arguments, gathered, joined, opened, start

from tidec.inputs.ask import Collective
from tidec.run.beside import Here, beside
from tidec.run.bench_rank import connected, machine_of
from tidec.run.timing import finish

Call = Callable[[], object]
# Of a window: how long it should be, and how much longer the calls should go on than the kernel takes alone.
WINDOW_S, BEYOND, EXTRA_CALLS, MAX_CALLS = 3e-3, 1.5, 2, 240
_FIRST_CYCLES, _MOST_CYCLES = 16_000_000, 128_000_000


@dataclass(frozen=True, slots=True)
class Window:
    """Kernels and calls side by side on one rank. kernel_s: from the gate to the last launch's end, of all launches.  ends_s: when each call was over.

    is_held: all of it was enqueued before the gate opened.
    """

    kernel_s: float
    ends_s: tuple[float, ...]
    is_held: bool = True

    @property
    def is_covered(self) -> bool:
        """Whether calls went on until after the last launch."""
        return not self.ends_s or self.ends_s[-1] >= self.kernel_s

    @property
    def call_s(self) -> float:
        """Seconds of a call; 0 where there is none."""
        return self.ends_s[-1] / len(self.ends_s) if self.ends_s else 0.0


def calls_by(ends_s: Sequence[float], until_s: float) -> float:
    """How many calls were over by then; of the one that was under way the part of its time that had passed."""
    over = sum(end <= until_s for end in ends_s)
    if over == len(ends_s):
        return float(over)
    begin = ends_s[over - 1] if over else 0.0
    return over + (until_s - begin) / (ends_s[over] - begin)


class Streams:
    """Windows of a GPU. why: raises where it knows why a stream does not end."""

    def __init__(self, here: Here, why: Call):
        self._here, self._why, self._cycles = here, why, _FIRST_CYCLES
        self._meeting, self._beside = torch.zeros(1, device=here.device), torch.cuda.Stream(here.device)

    def __call__(self, kernel: Call, launches: int, side: Call, calls: int) -> Window:
        while True:
            window = self._once(kernel, launches, side, calls)
            if all(gathered(window.is_held, self._here)) or self._cycles >= _MOST_CYCLES:
                return window
            self._cycles *= 2

    def _once(self, kernel: Call, launches: int, side: Call, calls: int) -> Window:
        finish(self._here.deadline_ms / 1000, self._why)
        dist.barrier(self._here.control)
        opened, begin, end, *ends = (torch.cuda.Event(enable_timing=True) for _ in range(3 + calls))
        torch.cuda._sleep(self._cycles)
        # Gates of the ranks open at different times; from here on they are together.
        dist.all_reduce(self._meeting)
        opened.record()
        self._beside.wait_event(opened)
        with torch.cuda.stream(self._beside):
            begin.record()
            for _ in range(launches):
                kernel()
            end.record()
        for over in ends:
            side()
            over.record()
        is_held = not opened.query()
        finish(self._here.deadline_ms / 1000, self._why)
        return Window(begin.elapsed_time(end) / 1e3 if launches else 0.0, tuple(opened.elapsed_time(e) / 1e3 for e in ends), is_held)


class Threads:
    """Windows of the host: calls are over when they return, so that another thread makes them."""

    def __init__(self, here: Here):
        self._here = here

    def __call__(self, kernel: Call, launches: int, side: Call, calls: int) -> Window:
        ends: list[float] = []
        dist.barrier(self._here.control)
        begin = time.perf_counter()

        def go_on() -> None:
            for _ in range(calls):
                side()
                ends.append(time.perf_counter() - begin)

        other = threading.Thread(target=go_on, daemon=True)
        other.start()
        for _ in range(launches):
            kernel()
        took = time.perf_counter() - begin
        other.join(self._here.deadline_ms / 1000)
        assert len(ends) == calls, f"{calls - len(ends)} of {calls} calls did not end"
        return Window(took if launches else 0.0, tuple(ends))


def nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Side:
    """What goes on beside a kernel. bytes: that a rank receives in a call."""

    collective: str
    by: str
    ctas: int
    bytes: int
    call: Call

    @property
    def name(self) -> str:
        return f"{self.collective} {self.by}" + (f", {self.ctas} CTAs" if self.ctas else "")


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


def sides(found: Opened, group: str, ctas: Sequence[int], here: Here) -> tuple[list[Side], list]:
    """Both collectives of a group, stock and by their plans, the sums on so many CTAs and on as many as the bundle has; and the nodes, to be closed."""
    made, nodes, is_stock_there = [], [], set()
    for collective in Collective:
        plan, own = found.plan_of(group, collective)
        is_summed = here.is_cuda and collective is Collective.REDUCE_SCATTER
        for n in dict.fromkeys((*ctas, own)) if is_summed else (0,):
            nodes.append(connected(found.loaded, plan, max(1, n), here))
            both = beside(plan, nodes[-1], here)
            difference = both.check()
            assert difference is None, f"{collective.value} of {group}: {difference}"
            received = both.size_bytes * (plan.ranks - 1) // plan.ranks
            if collective not in is_stock_there:
                is_stock_there.add(collective)
                made.append(Side(collective.value, "stock", 0, received, both.stock))
            made.append(Side(collective.value, "plan", n, received, both.plan))
    return made, nodes


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
            while True:
                window = windows(kernel, launches, nothing if s is None else s.call, 0 if s is None else calls[s.name])
                every = gathered(window, here)
                if s is None or all(w.is_covered for w in every) or calls[s.name] >= MAX_CALLS:
                    break
                calls[s.name] = min(MAX_CALLS, 2 * calls[s.name])
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


def rank_main(options) -> None:
    here = joined(options.target, deadline_s=options.deadline, seed=options.seed)
    found = opened(Path(options.bundle), options.target, here)
    group = options.group or found.bundle.groups[0].name
    made, nodes = sides(found, group, [int(c) for c in options.ctas.split(",")], here)

    def why() -> None:
        for node in nodes:
            node.wait(1)

    windows = Streams(here, why) if here.is_cuda else Threads(here)
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
    dist.barrier(here.control)
    dist.destroy_process_group()


def main(given: Sequence[str]) -> int:
    parser = arguments(__doc__, out="interference.json")
    parser.add_argument("bundle", help="a bundle's folder")
    parser.add_argument("--group", default="", help="whose collectives (default: the first of the bundle)")
    parser.add_argument("--ctas", default="16,8", help="of the sums, beside those of the bundle (default: 16,8)")
    parser.add_argument("--rounds", type=int, default=8, help="of every side, in both orders (default: 8)")
    options = parser.parse_args(given)
    code = start(__file__, given, ranks=options.ranks, limit_s=options.limit)
    if code is None:
        rank_main(options)
    return code or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
