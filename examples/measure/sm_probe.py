#!/usr/bin/env python3
"""Which multiprocessors collectives take, how many at once, and what that does to a kernel that wants all: tidec's, and the stock ones of FSDP2, in one run.

    python examples/measure/sm_probe.py BUNDLE [--group NAME] [--ctas 16,8] [--rounds 8] [--built FOLDER] [-o sm_probe.json]
    torchrun --nproc-per-node 2 examples/measure/sm_probe.py BUNDLE
    python examples/measure/sm_probe.py BUNDLE --target host --rounds 2        sees that it runs: there are no multiprocessors, and what is told of them means nothing

A probe is a wave of as many CTAs as there are multiprocessors, each of which takes a whole one (waves.cu) and says on which it begins, and when. Beside nothing all begin
at once; a multiprocessor on which none begins within twice that time of the first was taken, by kernels of a collective or by copies that are kernels. Waves of 20 us, with pauses of 30 us, follow
one another on a stream of usual priority while calls of a collective repeat on an urgent one, both behind one gate on every rank (windows.py). Calls go on until after the last wave, or the row
says that they do not (`is_covered`). Rounds take all sides in both orders; of the ranks the one with more multiprocessors taken is told.

Writes: `idle`, what waves say beside nothing; `rows`, the same a side: multiprocessors taken at once (median, mean and most of the waves), how many were always left, which were taken at any
time, how long one was taken (at least: until a wave was whole), and how much later than beside nothing a wave was whole. A call is slower beside waves: both times are there.
"""
from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import waves
from ranks import Opened, gathered, measured_by, of_bundle
from waves import Idle, Wave, idle_of, told_of
from windows import Side, Window, covered, nothing, sides, windows_of

from tidec.run.beside import Here
from tidec.run.bench_rank import machine_of

# Of a window: its waves, and how much longer the calls should go on than they take beside nothing.
WAVES, BEYOND, EXTRA_CALLS = 32, 1.5, 2

Seen = tuple[Window, list[Wave]]


def measured(windows: Callable[..., Window], probe: Callable, made: Sequence[Side], *, rounds: int, here: Here) -> tuple[list[Seen], dict[str, list[Seen]], dict[str, float]]:
    """What this rank's waves saw beside nothing and beside every side, a window a round after one that warms up; and seconds of a call of each side beside nothing."""
    windows(probe, WAVES, nothing, 0)
    idle_s = max(gathered(windows(probe, WAVES, nothing, 0).kernel_s, here))
    call_s = {s.name: max(gathered(windows(nothing, 0, s.call, 8).call_s, here)) for s in made}
    calls = {s.name: EXTRA_CALLS + math.ceil(BEYOND * idle_s / call_s[s.name]) for s in made}
    idle, found = [], {s.name: [] for s in made}
    for i in range(rounds + 1):
        for s in (None, *made) if i % 2 else (*made[::-1], None):
            if s is None:
                every, into = gathered(windows(probe, WAVES, nothing, 0), here), idle
            else:
                every, calls[s.name] = covered(windows, probe, WAVES, s.call, calls[s.name], here)
                into = found[s.name]
            if i:
                into.append((every[here.rank], probe.last()))
    return idle, found, call_s


def seen_of(seen: Sequence[Seen], idle: Idle) -> dict[str, object]:
    """What the windows of this rank say."""
    return {
        **told_of([w for _, each in seen for w in each], idle), "calls": len(seen[-1][0].ends_s), "call_beside_us": 1e6 * statistics.median(w.call_s for w, _ in seen),
        "is_covered": all(w.is_covered for w, _ in seen), "is_held": all(w.is_held for w, _ in seen), "rounds_taken": [told_of(each, idle)["taken_median"] for _, each in seen]}


def most(every: Sequence[Mapping]) -> dict[str, object]:
    """Of the ranks' rows the one with more taken; it is covered and held where all are."""
    return {**max(every, key=lambda r: (r["taken_median"], r["taken_mean"])), **{key: all(r[key] for r in every) for key in ("is_covered", "is_held")}}


def text(r: Mapping) -> str:
    """A row, as it is printed."""
    side = f"{r['collective']:14} {r['by']:5} {r['ctas'] or '-':>3} CTAs" if "collective" in r else f"{'nothing':29}"
    return (f"{side}  taken at once {r['taken_median']:5.1f} (mean {r['taken_mean']:5.1f}, most {r['taken_most']:3}), {len(r['multiprocessors']):3} at any time, each {r['taken_us']:6.1f} us or longer; "
            f"a wave is whole {r['late_us']:6.1f} us later (most {r['late_most_us']:.1f}){'' if r['is_covered'] else '  NOT COVERED'}")


def measure(options, here: Here, found: Opened) -> None:
    group = options.group or found.bundle.groups[0].name
    made, nodes = sides(found, group, [int(c) for c in options.ctas.split(",")], here)
    probe = waves.GpuWaves(options.built, here.device, WAVES) if here.is_cuda else waves.HostWaves(WAVES)
    alone, beside_each, call_s = measured(windows_of(here, nodes), probe, made, rounds=options.rounds, here=here)
    idle = idle_of([w for _, each in alone for w in each])
    told: dict[str, object] = {
        "schema": "tidec.sm_probe/1", "machine": machine_of(here), "group": group, "shard_bytes": made[0].bytes // (here.control.size() - 1), "ranks": here.control.size(),
        "rounds": options.rounds, "target": options.target, "hold_us": waves.HOLD_US, "pause_us": waves.PAUSE_US, "sms": len(idle.multiprocessors), "idle_us": idle.us,
        "within_us": idle.within_us, "idle": most(gathered(seen_of(alone, idle), here)),
        "rows": [{"collective": s.collective, "by": s.by, "ctas": s.ctas or None, "call_alone_us": 1e6 * call_s[s.name], **most(gathered(seen_of(beside_each[s.name], idle), here))}
                 for s in made]}
    if here.rank == 0:
        Path(options.out).write_text(json.dumps(told, indent=1) + "\n", encoding="ascii")
        print(f"{told['sms']} multiprocessors; beside nothing a wave is whole after {idle.us:.1f} us", *map(text, (told["idle"], *told["rows"])), sep="\n", flush=True)


def main(given: Sequence[str]) -> int:
    parser = of_bundle(__doc__, out="sm_probe.json")
    parser.add_argument("--group", default="", help="whose collectives (default: the first of the bundle)")
    parser.add_argument("--rounds", type=int, default=8, help="of every side, in both orders (default: 8)")
    parser.add_argument("--built", default="", help="a folder into which waves.py has compiled (default: it is compiled first, which takes nvcc)")
    return measured_by(__file__, given, parser, measure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
