#!/usr/bin/env python3
"""What both collectives take of a GPU's multiprocessors and memory, tidec's and the stock ones of FSDP2, in one run.

    python examples/measure/sm_time.py BUNDLE [--groups NAMES] [--ctas 16,8] [--calls 6] [-o sm_time.json]
    torchrun --nproc-per-node 2 examples/measure/sm_time.py BUNDLE
    python examples/measure/sm_time.py BUNDLE --target host        sees that it runs; there are no kernels to be counted

Multiprocessors: a few calls behind a gate, so that no kernel waits for a rank that is late, under torch.profiler; of every kernel min(CTAs, SMs) x duration, summed, for a
call. Copies are listed beside: those to a peer take no multiprocessor; those inside one GPU are the driver's, and whether they take some is not told by the profiler
(they do not end while all are full), so `home_copy_us` says how long they last.

Memory: what a call of stock takes of torch's allocator as FSDP2 makes its buffers, beyond shards, gradients and the rows that stay (`torch.cuda.memory_reserved` and
`memory_allocated`); for a plan its arena, planned and as the driver gives it. An arena has the parameters' landings in it, twice; stock's parameters are told beside.

Writes: `rows`, one a group, collective, side and CTA count.
"""
from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from ranks import Opened, gathered, measured_by, of_bundle
from traced import Kernel, by_kind, by_name, copies_of, kernels_of, sm_us

from tidec.inputs.ask import Collective
from tidec.plan.ir import Plan
from tidec.run.arena import TORCH_DTYPES
from tidec.run.bench_rank import connected, machine_of
from tidec.run.beside import Gather, Here, Reduce, beside
from tidec.run.timing import Gate, Timer, Wall

# Of the gate, and of the meeting of ranks behind it.
_GATE, _MEETING = "spin_kernel", "AllReduce"


def of_calls(kernels: Sequence[Kernel]) -> tuple[tuple[Kernel, ...], int]:
    """Kernels of the calls, without those of gates; and how many gates there were."""
    gates = sum(_GATE in k.name for k in kernels)
    return tuple(k for k in kernels if _GATE not in k.name and _MEETING not in k.name), max(1, gates)


def traced(call: Callable[[], object], timer: Timer, calls: int, here: Here) -> tuple[dict, float]:
    """The trace of some calls, and seconds of a call before anybody looked."""
    timer(call, calls)
    took = timer(call, calls)
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if here.is_cuda else [ProfilerActivity.CPU]
    with profile(activities=activities) as seen:
        timer(call, calls)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(file))
        return json.loads(file.read_text(encoding="utf-8", errors="replace")), took.seconds


def told_of(trace: Mapping, *, calls: int, sms: int) -> dict[str, object]:
    """What a trace says of one call."""
    kernels, gates = of_calls(kernels_of(trace))
    copies, num = copies_of(trace), calls * gates
    return {"sm_us": sm_us(kernels, sms) / num, "kernels": by_name(kernels, calls=num), "copies": by_kind(copies, calls=num),
            "home_copy_us": sum(c.us for c in copies if c.kind == "home") / num}


def taken(make: Callable[[], object], here: Here) -> dict[str, int]:
    """Bytes that torch's allocator takes and gives out while something is made, once it has given back all that it could."""
    if not here.is_cuda:
        make()
        return {"reserved_bytes": 0, "allocated_bytes": 0}
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(here.device), torch.cuda.memory_allocated(here.device)
    kept = make()
    torch.cuda.synchronize()
    after = torch.cuda.memory_reserved(here.device), torch.cuda.memory_allocated(here.device)
    del kept
    return {"reserved_bytes": after[0] - before[0], "allocated_bytes": after[1] - before[1]}


def stock_buffers(plan: Plan, here: Here) -> dict[str, int]:
    """What FSDP2 takes in a call: an all-gather's buffer of all shards, or a reduce-scatter's packed gradients and its output, in fp32."""
    layout = plan.layout

    def make() -> tuple[torch.Tensor, ...]:
        if plan.collective is Collective.ALL_GATHER:
            return (torch.empty(layout.landing_bytes, dtype=torch.uint8, device=here.device),)
        return tuple(torch.empty(num, device=here.device) for num in (plan.ranks * layout.packed_elems, layout.packed_elems))

    return taken(make, here)


def parameter_bytes(plan: Plan, here: Here) -> int:
    """What torch's allocator takes for the parameters that stock's all-gather copies out."""
    dtype = TORCH_DTYPES[plan.gathered[0]]
    return taken(lambda: [torch.empty(plan.ranks * p.shard_elems, dtype=dtype, device=here.device) for p in plan.layout.params], here)["reserved_bytes"]


def free_bytes(here: Here) -> int:
    """Of the GPU; 0 on the host."""
    if not here.is_cuda:
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(here.device)[0]


def rows_of(plan: Plan, ctas: Sequence[int], found: Opened, group: str, options, sms: int, here: Here) -> list[dict]:
    """Stock's row, and one of the plan a CTA count."""
    rows, fields = [], {"group": group, "collective": plan.collective.value, "params": len(plan.layout.params), "size_bytes": 0}
    memory = stock_buffers(plan, here)
    if plan.collective is Collective.ALL_GATHER:
        memory["parameter_bytes"] = parameter_bytes(plan, here)
    for n in ctas:
        before = free_bytes(here)
        node = connected(found.loaded, plan, max(1, n), here)
        arena = {"arena_bytes": plan.arena.bytes, "driver_bytes": before - free_bytes(here)}
        both: Gather | Reduce = beside(plan, node, here)
        difference = both.check()
        assert difference is None, f"{plan.collective.value} of {group}: {difference}"
        fields["size_bytes"] = both.size_bytes
        timer = Gate(here.control, here.device, deadline_s=options.deadline, why=lambda: node.wait(1)) if here.is_cuda else Wall(here.control)
        for by, call, beyond in (("stock", both.stock, memory), ("plan", both.plan, arena))[1 if rows else 0 :]:
            trace, seconds = traced(call, timer, options.calls, here)
            every = gathered({**fields, "by": by, "ctas": n or None if by == "plan" else None, "call_us": 1e6 * seconds, **told_of(trace, calls=options.calls, sms=sms), **beyond}, here)
            rows.append(max(every, key=lambda r: r["sm_us"]))
        here.meet(node)
        node.close()
        del both, timer, node
        dist.barrier(here.control)
    for r in rows[1:]:
        r["stock_sm_us_over"] = rows[0]["sm_us"] / r["sm_us"] if r["sm_us"] else None
    return rows


def text(r: Mapping) -> str:
    """A row, as it is printed."""
    less = f"  {r['stock_sm_us_over']:.1f} x less than stock" if r.get("stock_sm_us_over") else ""
    memory = f"arena {r['arena_bytes'] / 2**20:.1f} MiB" if r["by"] == "plan" else f"buffers {r['allocated_bytes'] / 2**20:.1f} MiB"
    return f"{r['group']:18} {r['collective']:14} {r['by']:5} {r['ctas'] or '-':>3} CTAs  {r['sm_us']:10.0f} SM us  a call {r['call_us']:8.1f} us  copies at home {r['home_copy_us']:7.1f} us  {memory}{less}"


def measure(options, here: Here, found: Opened) -> None:
    sms = torch.cuda.get_device_properties(here.device).multi_processor_count if here.is_cuda else 0
    told: dict[str, object] = {"schema": "tidec.sm_time/1", "machine": machine_of(here), "sms": sms, "ranks": here.control.size(), "calls": options.calls, "target": options.target, "rows": []}
    asked = [int(c) for c in options.ctas.split(",")]
    for group in options.groups.split(",") if options.groups else [g.name for g in found.bundle.groups]:
        for collective in Collective:
            plan, own = found.plan_of(group, collective)
            ctas = tuple(dict.fromkeys((*asked, own))) if here.is_cuda and collective is Collective.REDUCE_SCATTER else (0,)
            rows = rows_of(plan, ctas, found, group, options, sms, here)
            told["rows"] += rows
            if here.rank == 0:
                Path(options.out).write_text(json.dumps(told, indent=1) + "\n", encoding="ascii")
                print("\n".join(map(text, rows)), flush=True)


def main(given: Sequence[str]) -> int:
    parser = of_bundle(__doc__, out="sm_time.json")
    parser.add_argument("--groups", default="", help="only these, commas between")
    parser.add_argument("--calls", type=int, default=6, help="that are traced, of every side (default: 6)")
    return measured_by(__file__, given, parser, measure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
