"""What a GPU does for the calls of a plan, as CUPTI sees it, against the plan's own steps: stream by stream, copies, bytes and kernels.

    python3 examples/measure/trace.py BUNDLE... [--cupti DIR] [--calls C] [--keep DIR] [--out FILE]

Runs on the loopback target. What a plan asks is read from `plan.steps`: every stream of every rank is a sequence of kernels and, between them, of copies,
with so many bytes in so many rectangles; so is every wire that puts go by. The GPU's streams must be the same sequences. DIR holds include/cupti.h and
lib/libcupti.so of CUDA 13.0 or later; else that of nvcc is used. Needs numpy and nvcc. Exit 1 where a trace is another one than the plan's.
"""
from __future__ import annotations

import argparse
import ctypes
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from loopback import machine

from tidec.build.library import build_library
from tidec.build.toolchain import find_nvcc, run_tool
from tidec.emit.bundle import read_bundle
from tidec.inputs.ask import Collective
from tidec.interpret.bits import carry_out
from tidec.plan.ir import Plan
from tidec.plan.steps import Move, Step
from tidec.run.compare import first_difference
from tidec.run.host import HostJob
from tidec.run.loopback import run_loopback
from tidec.run.made import make
from tidec.schedule.program import Every, OpKind

# Of a launch: what runtime/cuda/launch.cuh hands to one kernel.
SUM_PIECES, LAND_PIECES = 472, 256
# Of CUPTI: copies on the device itself, and what a copy goes by.
DEVICE_TO_DEVICE = 8
CHANNELS = {1: "compute", 2: "copy engine"}
MAX_PITCH = 2**31 - 1
KERNELS = ("sum", "land", "zero", "cast")


@dataclass(frozen=True, slots=True)
class Did:
    """One thing of a stream. kernel: its name, "" of copies between two kernels: bytes together, in so many rectangles."""

    kernel: str
    bytes: int = 0
    copies: int = 0


Sequence = tuple[Did, ...]


# ---- what the plan asks


def asked_for(plan: Plan, calls: int) -> Counter[Sequence]:
    """What the streams of all ranks do, each a sequence; and what the caller does: it copies a landing away where the plan says that it is read."""
    streams: dict[tuple, list[Did]] = defaultdict(list)
    for rank in range(plan.ranks):
        for call in range(calls):
            for is_copy, steps in groupby(plan.steps(rank, call), lambda s: s.kind is OpKind.COPY and s.stream):
                if is_copy:
                    streams[rank, is_copy] += [Did("", r.width * r.rows, 1) for r in rectangles(steps, plan.lanes)]
                    continue
                for step in steps:
                    streams[(rank, step.stream) if step.kind is not OpKind.PUT else (rank, "put", *peer(step), step.context)] += list(work(plan, step, call))
        # The last landing is read when all calls are over.
        streams[rank, plan.program.streams[0].name] += [d for step in plan.steps(rank, calls) if step.kind is OpKind.READ for d in work(plan, step, calls)]
    return Counter(filter(None, (together(s) for s in streams.values())))


def peer(step: Step) -> tuple[int, object]:
    return step.moves[0].dst.node, step.moves[0].dst.lane


def work(plan: Plan, step: Step, call: int) -> Iterator[Did]:
    """What one step that is no copy of a set does."""
    if step.kind is OpKind.PUT:
        yield from (Did("", m.width * m.rows, 1) for m in step.moves)
    elif step.kind is OpKind.CAST:
        yield from (Did("", m.width, 1) if m.src_type is m.dst_type else Did("cast") for m in step.moves)
    elif step.kind is OpKind.ZERO:
        yield from (Did("zero") for _ in step.extents)
    elif step.kind is OpKind.SUM:
        own = step.moves[len(step.moves) - len(step.moves) // plan.lanes :]
        yield from zeroes(step, own)
        yield from (Did("sum") for _ in range(0, len(own), SUM_PIECES))
    elif step.kind is OpKind.LAND:
        yield from zeroes(step, step.moves if step.seed else ())
        yield from (Did("land") for _ in range(0, len(step.moves), LAND_PIECES))
    elif step.kind is OpKind.READ and call > 0:
        yield from (Did("", min(x.bytes, plan.layout.landing_bytes), 1) for x in step.extents)


def zeroes(step: Step, terms: tuple[Move, ...]) -> Iterator[Did]:
    """A kernel for each range of the destination that no term reaches; where there are more than three, one for all of it. A landing that adds has none."""
    if step.kind is OpKind.LAND and not step.seed:
        return
    (whole,) = step.extents
    rows = sorted((m.dst.offset + r * m.dst_pitch, 4 * (m.width // m.src_type.item_bytes)) for m in terms for r in range(m.rows))
    end, gaps = whole.place.offset, 0
    for begin, size in [*rows, (whole.place.offset + whole.bytes, 0)]:
        gaps, end = gaps + (begin > end), begin + size
    yield from (Did("zero") for _ in range(gaps if gaps <= 3 else 1))


def rectangles(steps: Iterable[Step], lanes: int) -> list[Move]:
    """The copies of a set, neighbours of equal width and even steps in both memories as one."""
    found: list[Move] = []
    for step in steps:
        for m in (one for move in step.moves for one in each_lane(move, lanes)):
            last = found[-1] if found else None
            if last is not None and m.rows == 1 and m.width == last.width and memories(m) == memories(last):
                src, dst = m.src.offset - last.src.offset, m.dst.offset - last.dst.offset
                if last.rows == 1 and m.width <= src <= MAX_PITCH and m.width <= dst <= MAX_PITCH:
                    found[-1] = replace(last, rows=2, src_pitch=src, dst_pitch=dst)
                    continue
                if last.rows > 1 and (src, dst) == (last.rows * last.src_pitch, last.rows * last.dst_pitch):
                    found[-1] = replace(last, rows=last.rows + 1)
                    continue
            found.append(m)
    return [m for m in found if m.width > 0]


def each_lane(m: Move, lanes: int) -> Iterator[Move]:
    if isinstance(m.dst.lane, Every):
        yield from (replace(m, dst=replace(m.dst, lane=lane)) for lane in range(lanes))
    else:
        yield m


def memories(m: Move) -> tuple:
    return tuple((p.space, p.param, p.node, p.lane) for p in (m.src, m.dst))


def together(did: Iterable[Did]) -> Sequence:
    """A sequence whose copies between two kernels are one."""
    found: list[Did] = []
    for d in did:
        if found and not (found[-1].kernel or d.kernel):
            found[-1] = Did("", found[-1].bytes + d.bytes, found[-1].copies + d.copies)
        else:
            found.append(d)
    return tuple(found)


# ---- what the GPU did


@dataclass(frozen=True, slots=True)
class Record:
    """A line of trace.cpp."""

    what: str
    stream: int
    start: int
    bytes: int
    copies: int
    channel: int
    rest: str


def records(file: Path) -> list[Record]:
    """Those of the calls: behind the last memset, which sets the counters to 0, and no copy of what the host gives or takes."""
    fields = [line.split(" ", 7) for line in file.read_text(encoding="utf-8").splitlines()]
    all_of_it = [Record(f[0], int(f[1]), int(f[2]), int(f[4]), int(f[5]), int(f[6]), f[7]) for f in fields]
    begin = max(r.start for r in all_of_it if r.what == "memset")
    return sorted((r for r in all_of_it if r.start > begin and (r.what == "kernel" or r.rest == str(DEVICE_TO_DEVICE))), key=lambda r: r.start)


def done(seen: Iterable[Record]) -> Counter[Sequence]:
    streams: dict[int, list[Did]] = defaultdict(list)
    for r in seen:
        streams[r.stream].append(Did("", r.bytes, r.copies) if r.what == "copy" else Did(kernel_name(r)))
    return Counter(together(s) for s in streams.values())


def kernel_name(r: Record) -> str:
    return next((k for k in KERNELS if f"{k}_kernel" in r.rest), r.rest)


# ---- the comparison


def build(cupti: Path | None, where: Path) -> ctypes.CDLL:
    root = cupti or Path(find_nvcc().command[0]).resolve().parent.parent
    include = next((p for p in (root / "include", root / "extras/CUPTI/include") if (p / "cupti.h").is_file()), None)
    library = next((p for p in (root / "lib", root / "lib64", root / "extras/CUPTI/lib64") if (p / "libcupti.so").exists()), None)
    if include is None or library is None:
        sys.exit(f"{root} has no include/cupti.h and lib/libcupti.so: give --cupti")
    run_tool((*find_nvcc().command, "-std=c++17", "-Xcompiler", "-fPIC", "-shared", f"-I{include}", str(Path(__file__).with_suffix(".cpp")), f"-L{library}", "-lcupti",
              "-Xlinker", f"-rpath={library.resolve()}", "-o", str(where / "trace.so")), deadline_s=120)
    return ctypes.CDLL(str(where / "trace.so"))


def compare(tracer: ctypes.CDLL, bundle: Path, calls: int, kept: Path) -> Iterator[dict]:
    """One row a plan."""
    library = build_library(bundle, "loopback").path
    found = read_bundle(bundle)
    for stem, plan in zip(found.stems, found.plans):
        given = make(plan, calls=calls)
        job = HostJob(library, plan, given, alpha=1 / plan.ranks)
        file = kept / f"{bundle.name}.{stem}.trace"
        begun = tracer.trace_begin(str(file).encode())
        ran = run_loopback(job)
        ended = tracer.trace_end()
        assert (begun, ended) == (0, 0), f"CUPTI gives {begun}, {ended}"
        seen = records(file)
        wanted, got = asked_for(plan, calls), done(seen)
        copies = [r for r in seen if r.what == "copy"]
        kernels = Counter(kernel_name(r) for r in seen if r.what == "kernel")
        yield {
            "bundle": bundle.name, "plan": stem, "digest": plan.digest, "ranks": f"{plan.nodes}x{plan.lanes}", "collective": plan.collective.value, "cast": plan.has_cast,
            "calls": calls, "streams": got.total(), "is_the_plans": got == wanted, "bits": "equal" if first_difference(plan, ran.outputs, carry_out(plan, given, alpha=1 / plan.ranks)) is None else "differ",
            "copies": sum(r.copies for r in copies), "copied_bytes": sum(r.bytes for r in copies), "kernels": dict(sorted(kernels.items())),
            "channels_of_copies": dict(sorted(Counter(CHANNELS.get(r.channel, str(r.channel)) for r in copies).items())),
            "planned": {"streams": wanted.total(), "copies": total(wanted, "copies"), "copied_bytes": total(wanted, "bytes"), "kernels": kernels_of(wanted)},
            "differ": [f"only {who}, {n} times: {' '.join(map(spelt, s[:12]))}{' ...' if len(s) > 12 else ''}" for who, left in (("planned", wanted - got), ("seen", got - wanted)) for s, n in list(left.items())[:6]],
        }


def total(streams: Counter[Sequence], of: str) -> int:
    return sum(n * sum(getattr(d, of) for d in s) for s, n in streams.items())


def kernels_of(streams: Counter[Sequence]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for s, n in streams.items():
        for d in s:
            if d.kernel:
                found[d.kernel] += n
    return dict(sorted(found.items()))


def spelt(d: Did) -> str:
    return d.kernel or f"{d.copies}x({d.bytes})"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("bundles", nargs="+", type=Path)
    parser.add_argument("--cupti", type=Path)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        tracer = build(asked.cupti, Path(where))
        kept = asked.keep or Path(where)
        kept.mkdir(exist_ok=True)
        rows = [row for bundle in asked.bundles for row in compare(tracer, bundle, asked.calls, kept)]
    for r in rows:
        print(r["bundle"], r["plan"], "the plan's" if r["is_the_plans"] else "NOT THE PLAN'S", f"{r['copies']} copies, {r['copied_bytes']} bytes,", r["kernels"], r["channels_of_copies"], *r["differ"], sep="  ")
    quiet = [r for r in rows if r["collective"] == Collective.ALL_GATHER.value and not r["cast"]]
    loud = sum(sum(r["kernels"].values()) for r in quiet)
    print(f"{sum(r['is_the_plans'] for r in rows)} of {len(rows)} are the plan's; {loud} kernels in {len(quiet)} all-gathers without a cast")
    if asked.out:
        head = {"machine": machine(), "what": "copies and kernels of all calls, by CUPTI, against plan.steps; loopback", "rows": rows}
        asked.out.write_text(json.dumps(head, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0 if all(r["is_the_plans"] and r["bits"] == "equal" for r in rows) and loud == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
