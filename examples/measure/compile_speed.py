#!/usr/bin/env python3
"""How long `tidec` takes and how much memory, as whole processes: compile cold, compile with kept proofs, --help.

    python examples/measure/compile_speed.py [--tidec PATH] [--times 5]

Prints a table with medians on the clock and of CPU time, and writes examples/measure/results/compile_speed.json. Exit 1 if a bound is missed. Standard library only.
Cold means: an empty cache, and no echo (--no-echo). The 8x8 and 1024x8 runs alternate, so that their ratio is of one time.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "examples" / "llama70b.json"
RESULTS = Path(__file__).resolve().parent / "results" / "compile_speed.json"
MAX_COLD_S, MAX_WARM_S, MAX_HELP_S, MAX_RATIO, MAX_MEMORY_MB = 4.0, 0.7, 0.15, 1.2, 300


@dataclass(frozen=True, slots=True)
class Run:
    """One whole process: seconds on the clock, seconds of its cores, and its largest resident memory in MB."""

    wall_s: float
    cpu_s: float
    memory_mb: float


def measure(command: list[str], cache: Path) -> Run:
    """Run a command to its end. Exits with its message where it fails."""
    environment = {**os.environ, "TIDEC_CACHE_DIR": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)    # Python keeps what it compiled, as it does for everybody
    with tempfile.TemporaryFile() as told:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=told, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            told.seek(0)
            sys.exit(f"{' '.join(command)} ended {process.returncode}:\n{told.read().decode(errors='replace')}")
    return Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tidec", default=shutil.which("tidec"), help="the tidec to run (default: the first on PATH, else this checkout)")
    parser.add_argument("--times", type=int, default=5, help="runs of each kind")
    options = parser.parse_args()
    tidec = [options.tidec] if options.tidec else [sys.executable, "-m", "tidec"]
    os.chdir(ROOT)

    def compiling(topology: str) -> list[str]:
        return [*tidec, "compile", "--topo", topology, "--group", str(MODEL), "--no-echo"]

    load = os.getloadavg()[0]       # before our own
    runs: dict[str, list[Run]] = {"help": [], "cold 8x8": [], "cold 1024x8": [], "warm 8x8": [], "warm 1024x8": []}
    for _ in range(options.times):
        runs["help"].append(measure([*tidec, "--help"], Path(os.devnull)))
        for topology in ("8x8", "1024x8"):
            with tempfile.TemporaryDirectory() as cache:
                runs[f"cold {topology}"].append(measure(compiling(topology), Path(cache) / "cache"))
                runs[f"warm {topology}"].append(measure(compiling(topology), Path(cache) / "cache"))

    wall = {name: statistics.median(r.wall_s for r in of) for name, of in runs.items()}
    cpu = {name: statistics.median(r.cpu_s for r in of) for name, of in runs.items()}
    memory = max(r.memory_mb for of in runs.values() for r in of)
    ratio = statistics.median(b.wall_s / a.wall_s for a, b in zip(runs["cold 8x8"], runs["cold 1024x8"]))
    limits = {"help": MAX_HELP_S, "cold 8x8": MAX_COLD_S, "warm 8x8": MAX_WARM_S}
    bounds = [
        *((f"{name}, seconds", wall[name], cpu[name], limits.get(name)) for name in runs),
        ("cold 1024x8 over cold 8x8", ratio, None, MAX_RATIO), ("peak memory, MB", memory, None, MAX_MEMORY_MB),
    ]
    machine = facts(tidec, load)
    for key, value in machine.items():
        print(f"{key}: {value}")
    print(f"\n{'what':28s} {'median':>8s} {'of CPUs':>8s} {'bound':>8s}")
    for name, value, busy, bound in bounds:
        cells = ["" if x is None else f"{x:.3f}" for x in (value, busy, bound)]
        print(f"{name:28s} {cells[0]:>8s} {cells[1]:>8s} {cells[2]:>8s}{'' if bound is None or value <= bound else '  MISSED'}")
    if float(machine["load"]) > 1.5:
        print(f"\nthe machine is busy (load {machine['load']}): times on the clock are too long")
    write(machine, bounds, runs)
    return int(any(bound is not None and value > bound for _, value, _, bound in bounds))


def facts(tidec: list[str], load: float) -> dict[str, str]:
    """What the numbers depend on."""
    cpu = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")), platform.machine())
    version = subprocess.run([*tidec, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    z3 = subprocess.run([sys.executable, "-m", "pip", "show", "z3-solver"], capture_output=True, text=True, check=False).stdout
    return {
        "tidec": version, "python": platform.python_version(), "system": f"{platform.system()} {platform.release()}", "cpu": cpu,
        "cores": str(len(os.sched_getaffinity(0))), "z3": next((line.split()[1] for line in z3.splitlines() if line.startswith("Version")), "not in this Python"),
        "load": f"{load:.1f}",
    }


def write(machine: dict[str, str], bounds: list, runs: dict[str, list[Run]]) -> None:
    content = {
        "machine": machine,
        "bounds": [{"what": name, "median": round(value, 4), "bound": bound} for name, value, _, bound in bounds],
        "runs": {name: [{"wall_s": round(r.wall_s, 4), "cpu_s": round(r.cpu_s, 4), "memory_mb": round(r.memory_mb, 1)} for r in of] for name, of in runs.items()},
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
