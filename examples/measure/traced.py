"""What a trace of torch.profiler says of a GPU: its kernels with their CTAs, its copies, and the ranges that somebody marked. Functions of the trace's JSON, and nothing else.

A trace is what `export_chrome_trace` writes: `traceEvents`, of which those with `ph` "X" have `cat`, `name`, `ts` and `dur` in microseconds, `pid`, `tid` and `args`.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# What is kept of a trace that is exported small: work of the GPU, and marks on both sides.
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_MARKS = ("user_annotation", "gpu_user_annotation")
_MARKED = ("tidec::", "FSDP::", "Optimizer.step", "nccl:")
# What names kernels of collectives, theirs and ours, and how far apart kernels may be that are told as one.
_COLLECTIVE, _GAP_US = ("nccl", "tidec", "chunk_cat", "split_with_sizes"), 5.0
_HOME, _PEER = "DtoD", "PtoP"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A launch. ctas: of its whole grid.  us: from its begin to its end."""

    name: str
    ctas: int
    us: float
    begin_us: float
    stream: int


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy or a fill. kind: "home" inside one GPU, "peer" to another, "fill", "host" else."""

    name: str
    kind: str
    bytes: int
    us: float


def _events(trace: Mapping, *cats: str) -> Iterable[Mapping]:
    return (e for e in trace["traceEvents"] if e.get("ph") == "X" and e.get("cat") in cats)


def kernels_of(trace: Mapping) -> tuple[Kernel, ...]:
    """Every kernel, in the order of its begin. Raises KeyError where a kernel does not say its grid: then nothing can be said of multiprocessors."""
    found = [Kernel(e["name"], math.prod(e["args"]["grid"]), float(e["dur"]), float(e["ts"]), int(e["args"]["stream"])) for e in _events(trace, "kernel")]
    return tuple(sorted(found, key=lambda k: k.begin_us))


def copies_of(trace: Mapping) -> tuple[Copy, ...]:
    """Every copy and fill."""
    found = []
    for e in _events(trace, "gpu_memcpy", "gpu_memset"):
        kind = "fill" if e["cat"] == "gpu_memset" else "home" if _HOME in e["name"] else "peer" if _PEER in e["name"] else "host"
        found.append(Copy(e["name"], kind, int(e["args"].get("bytes", 0)), float(e["dur"])))
    return tuple(found)


def sm_us(kernels: Iterable[Kernel], sms: int) -> float:
    """Microseconds of multiprocessors that kernels take: the sum of min(CTAs, SMs) times duration."""
    return sum(min(k.ctas, sms) * k.us for k in kernels)


def by_name(kernels: Sequence[Kernel], *, calls: int) -> list[dict[str, object]]:
    """Launches of one name and grid together, of one call: how many, and their microseconds."""
    found: dict[tuple[str, int], list[float]] = {}
    for k in kernels:
        found.setdefault((k.name.partition("(")[0], k.ctas), []).append(k.us)
    return [{"name": name[:120], "ctas": ctas, "num": len(us) / calls, "us": sum(us) / calls} for (name, ctas), us in found.items()]


def by_kind(copies: Sequence[Copy], *, calls: int) -> list[dict[str, object]]:
    """Copies of one name together, of one call."""
    found: dict[tuple[str, str], list[Copy]] = {}
    for c in copies:
        found.setdefault((c.kind, c.name), []).append(c)
    return [{"kind": kind, "name": name, "num": len(of) / calls, "bytes": sum(c.bytes for c in of) / calls, "us": sum(c.us for c in of) / calls} for (kind, name), of in found.items()]


def slim(trace: Mapping, *, label: str, pid: int) -> list[dict[str, object]]:
    """The trace as a few events that begin at 0, for `traceEvents` of a small one: work of the GPU by stream, marks by thread, under one process of that label.

    Of a trace without a GPU the operators that no other contains stand for work.
    """
    is_gpu = any(True for _ in _events(trace, *_WORK))
    kept = [e for e in _events(trace, *_WORK, *_MARKS) if e["cat"] not in _MARKS or e["name"].startswith(_MARKED)]
    if not is_gpu:
        kept += _outermost([e for e in _events(trace, "cpu_op")])
    if not kept:
        return []
    first = min(e["ts"] for e in kept)
    rows: dict[tuple[bool, object], int] = {}
    events: list[dict[str, object]] = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": label}}]
    for e in sorted(kept, key=lambda e: e["ts"]):
        is_on_gpu = e["cat"] in (*_WORK, "gpu_user_annotation")
        key = (is_on_gpu, e.get("args", {}).get("stream", e["tid"]) if is_on_gpu else e["tid"])
        if key not in rows:
            rows[key] = len(rows)
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": rows[key], "args": {"name": f"{'stream' if is_on_gpu else 'thread'} {key[1]}"}})
        small: dict[str, object] = {"ph": "X", "cat": e["cat"], "name": e["name"].partition("(")[0][:80] if e["cat"] == "kernel" else e["name"][:80], "pid": pid, "tid": rows[key],
                                    "ts": round(e["ts"] - first, 1), "dur": round(e["dur"], 1)}
        if "grid" in e.get("args", {}):
            small["args"] = {"ctas": math.prod(e["args"]["grid"])}
        events.append(small)
    return events


def merged(events: Sequence[Mapping]) -> list[dict[str, object]]:
    """The events of `slim` with kernels of the computation that follow one another on a stream as one, so that a step is small. Those of collectives stay as they are."""
    found: list[dict[str, object]] = []
    last: dict[object, dict[str, object]] = {}
    for e in events:
        row = (e["pid"], e.get("tid"))
        is_plain = e.get("cat") == "kernel" and not any(part in e["name"] for part in _COLLECTIVE)
        before = last.get(row)
        if is_plain and before is not None and e["ts"] - (before["ts"] + before["dur"]) <= _GAP_US:
            num = before["args"]["kernels"] + 1
            before |= {"name": f"{num} kernels", "dur": round(e["ts"] + e["dur"] - before["ts"], 1), "args": {"kernels": num}}
            continue
        found.append({**e, "args": {"kernels": 1}} if is_plain else dict(e))
        if e["ph"] == "X" and e["cat"] in _WORK:
            last[row] = found[-1] if is_plain else None
    return found


def _outermost(events: Sequence[Mapping]) -> list[Mapping]:
    """Those that no other of their thread contains."""
    found: list[Mapping] = []
    until: dict[object, float] = {}
    for e in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        if e["ts"] >= until.get(e["tid"], -math.inf):
            found.append(e)
            until[e["tid"]] = e["ts"] + e["dur"]
    return found
