"""Bundles on the loopback target of one GPU: bit for bit against the reference, and again and again with one digest.

    python3 examples/measure/loopback.py BUNDLE... [--repeats N] [--seconds S] [--calls C] [--jobs J] [--out FILE]

Every plan runs on poisoned memory, C calls in sequence: numbers, numbers added to what outputs hold, and NaN, infinities and -0.0 strewn in. Numbers run
N times, or as often as fits in S seconds. Bundles run side by side, so that the GPU goes from one to the other in the middle of their calls; no time is
kept. Needs numpy and nvcc. Exit 1 where a bit differs.
"""
from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tidec.build.library import build_library
from tidec.build.toolchain import find_nvcc, run_tool
from tidec.emit.bundle import read_bundle
from tidec.errors import TidecError
from tidec.inputs.ask import Collective
from tidec.interpret.bits import carry_out
from tidec.plan.ir import Plan
from tidec.run.compare import first_difference
from tidec.run.host import HostJob
from tidec.run.loopback import run_loopback
from tidec.run.made import Kind, make

# Runs of one job: the next one has memory, streams and counters of its own.
RUNS_A_JOB = 50


def machine() -> str:
    gpus = run_tool(("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"), deadline_s=20).splitlines()
    return f"{len(gpus)} x {gpus[0].replace(', ', ', driver ')}, {find_nvcc().version}"


def measure(bundle: Path, *, repeats: int, seconds: float, calls: int) -> list[dict]:
    """One row a plan and kind of run. bits: "equal", or the first one that differs, or why the job stopped."""
    library, rows = build_library(bundle, "loopback").path, []
    found = read_bundle(bundle)
    for stem, plan in zip(found.stems, found.plans):
        for kind, accumulate in cases(plan):
            start = time.monotonic()
            row = {"bundle": bundle.name, "plan": stem, "digest": plan.digest, "ranks": f"{plan.nodes}x{plan.lanes}", "collective": plan.collective.value,
                   "knobs": {k: v for k, v in plan.knobs}, "cast": plan.has_cast, "data": kind.value, "accumulates": accumulate, "calls": calls}
            wanted_repeats = repeats if kind is Kind.NUMBERS and not accumulate else min(repeats, 20)
            try:
                row.update(again(plan, library, kind, accumulate, wanted_repeats, seconds, calls))
            except TidecError as problem:
                row["bits"] = str(problem)
            rows.append(row)
            print(bundle.name, stem, kind.value, "accumulates" if accumulate else "", row.get("repeats", 0), "runs:", row["bits"], f"({time.monotonic() - start:.1f} s)", flush=True)
    return rows


def cases(plan: Plan) -> Iterator[tuple[Kind, bool]]:
    yield Kind.NUMBERS, False
    yield Kind.CLASSES, False
    if plan.collective is Collective.REDUCE_SCATTER:
        yield Kind.NUMBERS, True


def again(plan: Plan, library: Path, kind: Kind, accumulate: bool, repeats: int, seconds: float, calls: int) -> dict:
    given = make(plan, calls=calls, kind=kind, accumulate=accumulate, is_poisoned=True)
    wanted = carry_out(plan, given, alpha=1 / plan.ranks, accumulate=accumulate, is_poisoned=True)
    digests, bits, until = [], "equal", time.monotonic() + seconds
    while len(digests) < repeats and (not digests or time.monotonic() < until):
        num = min(RUNS_A_JOB, repeats - len(digests))
        ran = run_loopback(HostJob(library, plan, given, alpha=1 / plan.ranks, accumulate=accumulate, is_poisoned=True, num_seeds=num, deadline_s=120.0))
        digests += ran.digests
        if difference := first_difference(plan, ran.outputs, wanted):
            bits = f"differ: {difference}"
            break
    # Outputs are compared of the last run of a job; the digests are of all outputs of every run.
    if len(set(digests)) > 1:
        bits = f"{bits}, and {len(set(digests))} digests"
    return {"repeats": len(digests), "outputs": f"{digests[0]:016x}", "num_digests": len(set(digests)), "bits": bits}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    run = partial(measure, repeats=asked.repeats, seconds=asked.seconds, calls=asked.calls)
    if asked.jobs == 1:
        rows = [row for bundle in asked.bundles for row in run(bundle)]
    else:
        with ProcessPoolExecutor(asked.jobs) as pool:
            rows = [row for some in pool.map(run, asked.bundles) for row in some]
    equal = sum(row["bits"] == "equal" for row in rows)
    print(f"{equal} of {len(rows)} equal, {sum(row.get('repeats', 0) for row in rows)} runs")
    if asked.out:
        head = {"machine": machine(), "what": "loopback against the reference, bit for bit; poisoned memory", "equal": equal, "unequal": len(rows) - equal, "rows": rows}
        asked.out.write_text(json.dumps(head, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0 if equal == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
