#!/usr/bin/env python3
"""Whole training steps under FSDP2 of the Llama of examples/train_fsdp2.py: stock, in place and with slot reuse in turn, in one run.

    python examples/measure/steps.py --bundles FOLDER [--points 1b:8192,1b:32768:checkpoint,small:1024:exact] [--steps 10] [-o steps.json]
    CUBLAS_WORKSPACE_CONFIG=:4096:8 torchrun --nproc-per-node 2 examples/measure/steps.py --bundles FOLDER       all points in one job
    python examples/measure/steps.py --bundles FOLDER --trace steps_trace.json.gz --points 1b:8192     a trace of one step of each side, and nothing timed
    python examples/measure/steps.py --target host --points tiny:256:exact --steps 4                   sees that it runs, on processes of this machine

FOLDER/SIZE is the bundle of a size (`tidec capture --world 2 -o FILE examples/train_fsdp2.py --size SIZE`, then `tidec compile --topo 1x2 --group FILE -o FOLDER/SIZE`);
without --bundles plans are compiled, which takes z3. A point is SIZE:TOKENS, tokens a rank and step, then `checkpoint` (activations are computed anew in backward) and
`exact` (gradients are rounded to multiples of 2^-10 and kernels are deterministic, so that all sides must have the same bits; its times are no claim). Every point is a
job of its own, ended after --limit seconds, in which each side trains the same model from the same seed twice, in both orders: one that fails is told, and the next one runs.

Writes: `rows`, one a side and repeat: every step's milliseconds, their median from the third step on, of the slowest rank, beside the host's to ask for it (where they
are equal the GPU waited for the host); the peak of torch's allocator from the third step on, what it had reserved, the arenas beside, and all that was taken of the GPU;
losses. `points`: what follows, with stock beside. The trace has the GPU's work by stream, and the ranges that FSDP2 and tidec mark; chrome://tracing and Perfetto open it.
"""
from __future__ import annotations

import gc
import gzip
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from ranks import arguments, joined, start
from traced import merged, slim

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import train_fsdp2  # noqa: E402

SIDES = ("stock", "in_place", "slot_reuse")
POINTS = "1b:8192,1b:32768,1b:16384:checkpoint,3b:8192:checkpoint,small:1024:exact,small:1024:checkpoint:exact,1b:2048"
# At 3e-4 and with no warm-up the losses of the largest jump.
RATES, RATE = {"3b": "3e-5"}, "3e-4"
# The step that is traced, and how many there are then.
_TRACED, _TRACED_STEPS = 3, 5


@dataclass(frozen=True, slots=True)
class Point:
    """What is trained. tokens: of a rank, in a step."""

    size: str
    tokens: int
    is_checkpointed: bool
    is_exact: bool

    @property
    def name(self) -> str:
        return ":".join((self.size, str(self.tokens), *(["checkpoint"] if self.is_checkpointed else []), *(["exact"] if self.is_exact else [])))


def read_point(text: str) -> Point:
    """SIZE:TOKENS[:checkpoint][:exact]. Raises ValueError."""
    size, tokens, *words = text.split(":")
    if size not in train_fsdp2.SIZES or set(words) - {"checkpoint", "exact"}:
        raise ValueError(f"no point: {text}; SIZE:TOKENS[:checkpoint][:exact], SIZE one of {', '.join(train_fsdp2.SIZES)}")
    return Point(size, int(tokens), "checkpoint" in words, "exact" in words)


def training(point: Point, side: str, asked, *, steps: int) -> list[str]:
    """What train_fsdp2.py is given."""
    words = ["--device", "cuda" if asked.target == "nccl" else "cpu", "--size", point.size, "--tokens", str(point.tokens), "--steps", str(steps), "--every", str(steps), "--lr", RATES.get(point.size, RATE)]
    words += ["--checkpoint"] if point.is_checkpointed else []
    words += ["--round-gradients", "--digest"] if point.is_exact else []
    if side != "stock":
        words += ["--tidec", "--require", "--mode", side, "--deadline", str(asked.deadline)]
        words += ["--plans", str(Path(asked.bundles) / point.size)] if asked.bundles else []
    return words


def trained(point: Point, side: str, asked, *, steps: int, around: Callable[[int], AbstractContextManager] = lambda step: nullcontext()) -> list[dict]:
    """What every rank has of a side. Nothing of the model is left."""
    options = train_fsdp2.arguments().parse_args(training(point, side, asked, steps=steps))
    try:
        return train_fsdp2.train(options, "cuda" if asked.target == "nccl" else "cpu", around)
    finally:
        gc.collect()
        if asked.target == "nccl":
            torch.cuda.empty_cache()


def row_of(point: Point, side: str, repeat: int, ranks: Sequence[Mapping]) -> dict[str, object]:
    """Of all ranks: the slowest's times, the most memory, the mean of losses, and whether ranks agree that all ran by plans."""
    slowest = max(ranks, key=lambda r: r["step_ms"])
    row: dict[str, object] = {"point": point.name, "by": side, "repeat": repeat, "tokens": slowest["tokens"], **{k: slowest[k] for k in ("step_ms", "host_ms", "steps_ms")}}
    row |= {k: max(r.get(k, 0) for r in ranks) for k in ("peak_bytes", "reserved_bytes", "arena_bytes", "taken_bytes")}
    row["losses"] = [statistics.fmean(of_step) for of_step in zip(*(r["losses"] for r in ranks))]
    row["bits"] = [[r["digest"], [x.hex() for x in r["losses"]]] for r in ranks] if point.is_exact else None
    if side != "stock":
        row |= {"calls_by_plan": slowest["by_plan"], "calls_stock": slowest["stock_calls"], "is_as_planned": all(r["is_as_planned"] for r in ranks)}
    return row


def compared(rows: Sequence[Mapping]) -> list[dict[str, object]]:
    """A point and side: medians over the steps of all its repeats, beside stock's of the same job.

    loss_apart: the most that a loss of it is away from the nearest of stock's; stock's own is how far its repeats are from one another.
    """
    found = []
    for name in dict.fromkeys(r["point"] for r in rows):
        by = {side: [r for r in rows if r["point"] == name and r["by"] == side] for side in SIDES}
        for side in (s for s in SIDES if by[s] and by["stock"]):
            mine, stock = by[side], by["stock"]
            others = [(r, [o for o in stock if o is not r]) for r in mine]
            apart = [min(abs(a - b) for b in losses) for r, of in others if of for a, *losses in zip(r["losses"], *(o["losses"] for o in of))]
            steps, peak = _step_ms(mine), max(r["peak_bytes"] + r["arena_bytes"] for r in mine)
            line: dict[str, object] = {
                "point": name, "by": side, "tokens": mine[0]["tokens"], "repeats": len(mine), "step_ms": steps, "host_ms": statistics.median(r["host_ms"] for r in mine),
                "times_faster": _step_ms(stock) / steps, "peak_bytes": peak, "peak_beyond_stock_bytes": peak - max(r["peak_bytes"] for r in stock), "loss_apart": max(apart, default=None)}
            if mine[0]["bits"] is not None:
                line |= {"repeats_have_equal_bits": all(r["bits"] == mine[0]["bits"] for r in mine), "bits_are_stocks": all(r["bits"] == stock[0]["bits"] for r in mine)}
            found.append(line)
    return found


def _step_ms(rows: Sequence[Mapping]) -> float:
    return statistics.median(ms for r in rows for ms in (r["steps_ms"][train_fsdp2.WARM_UP :] or r["steps_ms"]))


def text(line: Mapping) -> str:
    """A line of `points`, as it is printed."""
    bits = "" if "bits_are_stocks" not in line else f"  bits: {'stock' if line['bits_are_stocks'] else 'NOT stock'}'s, repeats {'equal' if line['repeats_have_equal_bits'] else 'DIFFER'}"
    apart = "-" if line["loss_apart"] is None else f"{line['loss_apart']:.2g}"
    return (f"{line['point']:24} {line['by']:10} {line['step_ms']:8.1f} ms a step ({line['times_faster']:.3f} x), host {line['host_ms']:8.1f} ms, "
            f"peak {line['peak_bytes'] / 2**30:7.3f} GiB ({line['peak_beyond_stock_bytes'] / 2**20:+.0f} MiB), losses {apart} apart{bits}")


def add(path: Path, kind: str, item: object) -> dict:
    """Add to a list of the file, and write it with what follows."""
    told = json.loads(path.read_text(encoding="ascii"))
    told[kind].append(item)
    told["points"] = compared(told["rows"])
    path.write_text(json.dumps(told, indent=1) + "\n", encoding="ascii")
    return told


def time_point(point: Point, asked) -> None:
    """Each side twice, in both orders."""
    turns = [(side, 0) for side in SIDES] + [(side, 1) for side in reversed(SIDES)]
    for side, repeat in turns:
        ranks = trained(point, side, asked, steps=asked.steps)
        if dist.get_rank() == 0:
            told = add(Path(asked.out), "rows", row_of(point, side, repeat, ranks))
            print("\n".join(text(line) for line in told["points"] if line["point"] == point.name and line["by"] == side), flush=True)


def trace_point(point: Point, asked) -> None:
    """One step of each side, of rank 0, into one file."""
    events: list[dict] = []
    for pid, side in enumerate(SIDES):
        seen: list[profile] = []

        def around(step: int) -> AbstractContextManager:
            if step != _TRACED or dist.get_rank() != 0:
                return nullcontext()
            seen.append(profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if asked.target == "nccl" else [])]))
            return seen[-1]

        trained(point, side, asked, steps=_TRACED_STEPS, around=around)
        if dist.get_rank() == 0:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "trace.json"
                seen[0].export_chrome_trace(str(file))
                events += merged(slim(json.loads(file.read_text(encoding="utf-8", errors="replace")), label=f"{side}, {point.name}, rank 0", pid=pid))
    if dist.get_rank() == 0:
        content = json.dumps({"schema": "tidec.step_trace/1", "point": point.name, "torch": torch.__version__, "traceEvents": events}, separators=(",", ":")).encode("ascii")
        Path(asked.trace).write_bytes(gzip.compress(content, mtime=0) if asked.trace.endswith(".gz") else content)
        print(f"{len(events)} events of {point.name} in {asked.trace}", flush=True)


def rank_main(asked) -> None:
    joined(asked.target, deadline_s=asked.deadline, seed=asked.seed)
    if asked.target == "nccl":
        # As a training script has it: the computation on the default stream.
        torch.cuda.set_stream(torch.cuda.default_stream())
    for point in map(read_point, asked.points.split(",")):
        (trace_point if asked.trace else time_point)(point, asked)
    dist.barrier()
    dist.destroy_process_group()


def main(given: Sequence[str]) -> int:
    parser = arguments(__doc__, out="steps.json")
    parser.add_argument("--points", default=POINTS, help=f"what is trained (default: {POINTS})")
    parser.add_argument("--bundles", default="", help="a folder with a bundle for each size (default: plans are compiled)")
    parser.add_argument("--steps", type=int, default=10, help="of every side and repeat, the first two not counted (default: 10)")
    parser.add_argument("--trace", default="", help="write a trace of one step of each side to this file, and time nothing")
    asked = parser.parse_args(given)
    points, path, worst = [read_point(p) for p in asked.points.split(",")], Path(asked.out), 0
    if not asked.trace and os.environ.get("RANK", "0") == "0" and "RANKS_STORE" not in os.environ:
        path.write_text(json.dumps({"schema": "tidec.steps/1", "torch": torch.__version__, "target": asked.target, "steps": asked.steps, "rows": [], "points": [], "failed": []}) + "\n", encoding="ascii")
    for point in points:
        # cuBLAS gives the same bits again only so.
        exact = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if point.is_exact else {}
        code = start(__file__, [*given, "--points", point.name], ranks=asked.ranks, limit_s=asked.limit, environment=exact)
        if code is None:
            rank_main(asked)
            return 0
        if code and not asked.trace:
            add(path, "failed", {"point": point.name, "exit": code})
        worst = worst or code
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
