"""Both collectives of one node on two GPUs, beside what stock FSDP2 does for the same: times, rates and whether the bits are right.

    tidec compile --topo 1x2 --group FILE -o BUNDLE --target nccl
    python3 -m torch.distributed.run --standalone --nproc-per-node 2 examples/measure/pair.py BUNDLE [--out FILE] [--ctas 8,16]

S shard bytes a rank. Stock: NCCL's all-gather and the copy-out of every parameter; packing and NCCL's fp32 reduce-scatter. Calls are enqueued
behind a kernel that sleeps, so that host time is outside; the host's time to enqueue one call is measured apart. Medians of rounds, both orders.
"""
from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tidec.emit.bundle import read_bundle
from tidec.inputs.ask import Collective
from tidec.plan.ir import Plan
from tidec.run.worker import open_library

CALLS, ROUNDS, SLEEP_CYCLES, DEADLINE_MS = 10, 5, 8_000_000, 20_000
HANDLE_BYTES, MESSAGE_BYTES = 64, 4096


class Node:
    """A rank of one program."""

    def __init__(self, library: ctypes.CDLL, plan: Plan, rank: int, ctas: int):
        self.library, self.message, self.plan, self.calls = library, ctypes.create_string_buffer(MESSAGE_BYTES), plan, 0
        number = next(i for i in range(library.tidec_num_programs()) if library.tidec_program_at(i).contents.plan_digest.decode() == plan.digest)
        library.tidec_node_open.restype = ctypes.c_void_p
        self.node = ctypes.c_void_p(library.tidec_node_open(ctypes.c_int64(number), ctypes.c_int64(rank), ctas, ctypes.c_int64(DEADLINE_MS), self.message, ctypes.c_int64(MESSAGE_BYTES)))
        if not self.node:
            raise SystemExit(self.message.value.decode())
        own = ctypes.create_string_buffer(HANDLE_BYTES)
        self.ask("handle", own)
        handles: list = [None] * dist.get_world_size()
        dist.all_gather_object(handles, own.raw)
        self.ask("connect", ctypes.c_char_p(b"".join(handles)))
        dist.barrier()

    def ask(self, what: str, *arguments: object) -> None:
        if getattr(self.library, f"tidec_node_{what}")(self.node, *arguments, self.message, ctypes.c_int64(MESSAGE_BYTES)):
            raise SystemExit(f"{what}: {self.message.value.decode()}")

    def gather(self, shard: torch.Tensor, stream: ctypes.c_void_p) -> int:
        """Gathers, and waits for and lets go of the landing at once. Returns where it lies."""
        e, at = ctypes.c_int64(self.calls), ctypes.c_void_p()
        self.ask("gather", e, ctypes.c_void_p(shard.data_ptr()), stream)
        self.ask("acquire", e, stream, ctypes.byref(at))
        self.ask("release", e, stream)
        self.calls += 1
        return at.value

    def reduce(self, gradients: ctypes.Array, out: torch.Tensor, stream: ctypes.c_void_p) -> None:
        self.ask("reduce", ctypes.c_int64(self.calls), gradients, ctypes.c_int64(len(gradients)), ctypes.c_void_p(out.data_ptr()), ctypes.c_float(1.0), 0, stream)
        self.calls += 1

    def wait(self) -> None:
        self.ask("wait", ctypes.c_int64(DEADLINE_MS))

    def close(self) -> None:
        torch.cuda.synchronize()
        dist.barrier()
        self.library.tidec_node_close(self.node)


def timed(call) -> tuple[float, float]:
    """Milliseconds of one call on the GPU, and microseconds of the host to enqueue it."""
    torch.cuda.synchronize()
    dist.barrier()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP_CYCLES)
    start.record()
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    host = time.perf_counter() - begin
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / CALLS, host / CALLS * 1e6


def view(address: int, elems: int, dtype: torch.dtype) -> torch.Tensor:
    """Memory of the node as a tensor."""
    class Memory:
        __cuda_array_interface__ = {"shape": (elems,), "typestr": "<u2", "data": (address, False), "version": 3}
    return torch.as_tensor(Memory(), device="cuda").view(dtype)


def all_gather(library: ctypes.CDLL, plan: Plan, rank: int) -> dict:
    params = [p for p in plan.layout.params]
    shard = torch.randn(plan.layout.shard_bytes // 2, device="cuda").to(torch.bfloat16)
    node, stream = Node(library, plan, rank, 8), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    whole = torch.empty(2 * shard.numel(), dtype=shard.dtype, device="cuda")
    sizes = [p.shard_elems for p in params]
    outs = [torch.empty(2, n, dtype=shard.dtype, device="cuda") for n in sizes]

    def stock() -> None:
        dist.all_gather_into_tensor(whole, shard)
        torch.split_with_sizes_copy(whole.view(2, -1), sizes, dim=1, out=outs)

    def ours() -> None:
        node.gather(shard, stream)

    stock()
    at = node.gather(shard, stream)
    landing = view(at, 2 * shard.numel(), shard.dtype)
    wanted = torch.cat([o.reshape(-1) for o in outs])
    torch.cuda.synchronize()
    is_equal = torch.equal(landing.view(torch.int16), wanted.view(torch.int16))
    times = {"stock": [], "ours": []}
    for turn in range(ROUNDS):
        for name, call in ((("stock", stock), ("ours", ours)) if turn % 2 else (("ours", ours), ("stock", stock))):
            times[name].append(timed(call))
    node.wait()
    node.close()
    result = row(times, is_equal)
    result["gbps_received"] = plan.layout.shard_bytes / result["ours_ms"] / 1e6
    return result


def reduce_scatter(library: ctypes.CDLL, plan: Plan, rank: int, ctas: int) -> dict:
    params = [p for p in plan.layout.params]
    gradients = [torch.randn(p.real_elems, device="cuda").to(torch.bfloat16) for p in params]
    node, stream = Node(library, plan, rank, ctas), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    pointers = (ctypes.c_void_p * len(params))(*(g.data_ptr() for g in gradients))
    out = torch.full((plan.layout.packed_elems,), float("nan"), device="cuda")
    padded = [torch.nn.functional.pad(g, (0, 2 * p.shard_elems - p.real_elems)).view(2, -1) for g, p in zip(gradients, params)]
    packed = torch.empty(2, plan.layout.packed_elems, device="cuda")
    own = torch.empty(plan.layout.packed_elems, device="cuda")

    def stock() -> None:
        torch._chunk_cat(padded, dim=0, num_chunks=2, out=packed)
        dist.reduce_scatter_tensor(own, packed.view(-1))

    def ours() -> None:
        node.reduce(pointers, out, stream)

    stock()
    ours()
    torch.cuda.synchronize()
    is_equal = all(
        torch.equal(out[p.packed_start : p.packed_start + n], own[p.packed_start : p.packed_start + n])
        for p in params for n in [max(0, min(p.shard_elems, p.real_elems - rank * p.shard_elems))])
    times = {"stock": [], "ours": []}
    for turn in range(ROUNDS):
        for name, call in ((("stock", stock), ("ours", ours)) if turn % 2 else (("ours", ours), ("stock", stock))):
            times[name].append(timed(call))
    node.wait()
    node.close()
    return {**row(times, is_equal), "ctas": ctas}


def row(times: dict, is_equal: bool) -> dict:
    """Medians, the slower rank's."""
    found = {}
    for name, pairs in times.items():
        gpu, host = (torch.tensor(statistics.median(p[i] for p in pairs), device="cuda") for i in (0, 1))
        dist.all_reduce(gpu, dist.ReduceOp.MAX)
        dist.all_reduce(host, dist.ReduceOp.MAX)
        found[f"{name}_ms"], found[f"{name}_host_us"] = gpu.item(), host.item()
    equal = torch.tensor(int(is_equal), device="cuda")
    dist.all_reduce(equal, dist.ReduceOp.MIN)
    return {**found, "ratio": found["stock_ms"] / found["ours_ms"], "bits_equal": bool(equal.item())}


def copy_gbps(rank: int) -> float:
    """The rate of one copy engine to the peer, one way, while the other direction is quiet."""
    runtime = ctypes.CDLL(next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libcudart" in line))
    nbytes, rates = 256 << 20, []
    source, target = (torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{d}") for d in (rank, 1 - rank))
    runtime.cudaSetDevice(rank)
    runtime.cudaDeviceEnablePeerAccess(1 - rank, 0)
    for _ in range(6 if rank == 0 else 0):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        code = runtime.cudaMemcpyAsync(ctypes.c_void_p(target.data_ptr()), ctypes.c_void_p(source.data_ptr()), ctypes.c_size_t(nbytes), 3,
                                       ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        end.record()
        torch.cuda.synchronize()
        assert code == 0, code
        rates.append(nbytes / start.elapsed_time(end) / 1e6)
    dist.barrier()
    return statistics.median(rates[1:]) if rates else 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ctas", default="8,16")
    parser.add_argument("--groups", default="", help="only these, by name")
    parser.add_argument("--library", type=Path, help="another one than the bundle's own")
    asked = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("cuda:nccl,cpu:gloo", device_id=torch.device("cuda", rank))
    bundle = read_bundle(asked.bundle)
    library = open_library(str(asked.library or asked.bundle / "lib" / "nccl-sm_90.so"))
    result = {"machine": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())], "torch": torch.__version__, "cuda": torch.version.cuda,
              "nccl": ".".join(map(str, torch.cuda.nccl.version())), "calls": CALLS, "rounds": ROUNDS, "copy_gbps": copy_gbps(rank), "rows": []}
    if rank == 0:
        print(f"copy to the peer, one way: {result['copy_gbps']:.0f} GB/s", flush=True)
    for plan in bundle.plans:
        name = plan.groups[0]
        if asked.groups and name not in asked.groups.split(","):
            continue
        runs = [all_gather(library, plan, rank)] if plan.collective is Collective.ALL_GATHER else [
            reduce_scatter(library, plan, rank, int(c)) for c in asked.ctas.split(",")]
        for r in runs:
            result["rows"].append({"group": name, "collective": plan.collective.value, "shard_mib": plan.layout.shard_bytes / 2**20, **r})
            if rank == 0:
                print(f"{name:10} {plan.collective.value:15} {plan.layout.shard_bytes / 2**20:7.1f} MiB  stock {1e3 * r['stock_ms']:8.1f} us  ours {1e3 * r['ours_ms']:8.1f} us  "
                      f"x {r['ratio']:.2f}  host {r['ours_host_us']:6.1f} us (stock {r['stock_host_us']:.1f})  {'bits equal' if r['bits_equal'] else 'BITS DIFFER'}"
                      f"{'  ' + str(r['ctas']) + ' CTAs' if 'ctas' in r else ''}", flush=True)
    if rank == 0 and asked.out:
        asked.out.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
