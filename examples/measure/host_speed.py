#!/usr/bin/env python3
"""How fast the host target moves and sums bytes, beside one thread's memcpy in the same run: four ranks, 64 MiB a rank.

    python examples/measure/host_speed.py [--times 5]

Prints a table with medians and writes examples/measure/results/host_speed.json. Exit 1 if a bound is missed. Needs tidec[run].
An all-gather's bytes are those that land on all ranks. The vectorised sum's are those that it reads and writes: four bf16 sources, one fp32 row.
memcpy's are bytes copied beside the first, and bytes read and written beside the second.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tidec.build.library import FLAGS, build_library
from tidec.build.toolchain import find_compiler
from tidec.emit.render import render
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.interpret.bits import Given
from tidec.plan.ir import Plan
from tidec.plan.lower import lower
from tidec.run.host import HostJob, run_host
from tidec.shipped import folder
from tidec.verify.certificate import Proved

RESULTS = Path(__file__).resolve().parent / "results" / "host_speed.json"
MIN_GATHER, MIN_SUM = 0.6, 0.5
MIB, CALLS, SHARD_MIB, PARAMS = 2**20, 4, 64, 16
TOPOLOGIES = ("1x4", "2x2")
SUM = """
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>
#include "host/arithmetic.hpp"
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
int main() {
  const int64_t elems = 16 << 20;
  std::vector<std::vector<char>> sources(4, std::vector<char>(2 * elems, 1));
  std::vector<char> from(64 << 20, 1), to(64 << 20, 2);
  std::vector<float> sum(elems, 1);
  const char* rows[4];
  for (int i = 0; i < 4; ++i) rows[i] = sources[i].data();
  for (int i = 0; i < 9; ++i) {
    double start = now();
    std::memcpy(to.data(), from.data(), from.size());
    asm volatile("" ::"r"(to.data()) : "memory");
    const double copied = now() - start;
    start = now();
    tidec::host::sum_rows(sum.data(), rows, 4, tidec::Dtype::kBf16, elems, 0.5f, false, false);
    std::printf("%.0f %.0f\\n", 2.0 * from.size() / copied, 12.0 * elems / (now() - start));
  }
}
"""


def plan_of(topo: str) -> Plan:
    topology = parse_topology(topo)
    rows = topology.ranks * SHARD_MIB * MIB // PARAMS // 2 // 1024
    group = Group("g", 1, tuple(Parameter(f"p{i}", (rows, 1024), Dtype.BF16) for i in range(PARAMS)))
    return lower(Ask(topology, group, Lowering.P2P, parse_knobs((), topology.lanes, nodes=topology.nodes)), Collective.ALL_GATHER)


def copy_rate() -> float:
    """Bytes a second that one thread copies, 256 MiB at a time."""
    source, target = np.ones(256 * MIB, np.uint8), np.ones(256 * MIB, np.uint8)      # all of both is touched
    start = time.perf_counter()
    np.copyto(target, source)
    return source.size / (time.perf_counter() - start)


def gather_rate(library: Path, plan: Plan) -> float:
    """Bytes a second that land on all ranks, over some calls in sequence."""
    shard, nothing = np.ones(plan.layout.shard_bytes, np.uint8), np.zeros(0, np.uint8)
    given = Given((((shard,),) * plan.ranks,) * CALLS, ((nothing,) * plan.ranks,) * CALLS)
    ran = run_host(HostJob(library, plan, given, first_seed=0, is_unread=True))
    return CALLS * plan.ranks * plan.layout.landing_bytes / min(ran.seconds)


def sum_rates(beside: Path) -> list[tuple[float, float]]:
    """(memcpy, sum): bytes read and written a second, one after the other."""
    runtime = folder("runtime")
    (beside / "sum.cpp").write_text(SUM)
    flags = [f for f in FLAGS if f != "-fPIC"]
    subprocess.run((*find_compiler().command, *flags, f"-I{runtime}", f"-I{runtime / 'include'}", str(beside / "sum.cpp"), str(runtime / "host" / "arithmetic.cpp"),
                    "-o", str(beside / "sum")), check=True)
    lines = subprocess.run((str(beside / "sum"),), capture_output=True, text=True, check=True).stdout.splitlines()
    return [tuple(map(float, line.split())) for line in lines[2:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=5, help="runs of each kind")
    options = parser.parse_args()
    plans = [plan_of(topo) for topo in TOPOLOGIES]
    rows = []
    with tempfile.TemporaryDirectory() as name:
        beside = Path(name)
        for source in render([Proved(p, "{}") for p in plans]):
            (beside / source.name).write_text(source.text)
        (beside / "manifest.sha256").write_text("of no bundle\n")
        library = build_library(beside, "host").path
        for topo, plan in zip(TOPOLOGIES, plans):
            pairs = [(copy_rate(), gather_rate(library, plan)) for _ in range(options.times)]
            rows.append((f"all-gather {topo}", *map(statistics.median, zip(*pairs)), statistics.median(b / a for a, b in pairs), MIN_GATHER))
        pairs = sum_rates(beside)
        rows.append(("vectorised sum", *map(statistics.median, zip(*pairs)), statistics.median(b / a for a, b in pairs), MIN_SUM))
    print(f"{'what':20}{'memcpy GB/s':>14}{'GB/s':>10}{'ratio':>8}{'at least':>10}")
    for what, copied, moved, ratio, least in rows:
        print(f"{what:20}{copied / 1e9:>14.2f}{moved / 1e9:>10.2f}{ratio:>8.2f}{least:>10.2f}")
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "load_before_and_now": os.getloadavg()[:2], "compiler": find_compiler().version}
    RESULTS.write_text(json.dumps({"machine": machine, "shard_mib": SHARD_MIB, "calls": CALLS, "times": options.times, "rows": [
        {"what": what, "memcpy_bytes_per_s": round(copied), "bytes_per_s": round(moved), "ratio": round(ratio, 3), "at_least": least}
        for what, copied, moved, ratio, least in rows]}, indent=1) + "\n")
    return int(any(ratio < least for *_, ratio, least in rows))


if __name__ == "__main__":
    sys.exit(main())
