#!/usr/bin/env python3
"""The collectives of a model of 50 million parameters under FSDP2 on the CPU: stock (gloo), and by plans on the host target, in one run.

    python examples/measure/fsdp2.py [--passes 9] [--ranks 4]

Times, without any computation of the model: all-gather and copy-out of all groups, then reduce-scatter of all gradients, stock and by plans in turn,
in both orders. Then the most bytes that are live at once in a backward pass of real training: what torch's allocator gives out beyond what was live
before, and for plans their arenas beside. Times are medians over passes, of the slowest rank; bytes are the least of several backward passes, of the rank
that has most, since what a thread of gloo's frees is not seen by torch's profiler and seems to live on: in some passes of stock, by up to twice. Writes
examples/measure/results/fsdp2.json; exit 1 if a bound is missed: times, or bytes of stock.
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

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.profiler import ProfilerActivity, profile, record_function

RESULTS = Path(__file__).resolve().parent / "results" / "fsdp2.json"
DIM, HIDDEN, BLOCKS, MIN_RATIO = 768, 2048, 8, 4.0
MODES = ("in_place", "slot_reuse")


class Block(nn.Module):
    """A block of a Llama without its attention's softmax: five matrices and two vectors, 6.1 million parameters."""

    def __init__(self):
        super().__init__()
        self.wq, self.wo = (nn.Linear(DIM, DIM, bias=False) for _ in range(2))
        self.w1, self.w3 = (nn.Linear(DIM, HIDDEN, bias=False) for _ in range(2))
        self.w2 = nn.Linear(HIDDEN, DIM, bias=False)
        self.norm, self.scale = nn.RMSNorm(DIM), nn.RMSNorm(DIM)

    def forward(self, x):
        x = x + self.wo(torch.relu(self.wq(self.norm(x))))
        return x + self.w2(torch.relu(self.w1(self.scale(x))) * self.w3(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def model() -> Net:
    torch.manual_seed(0)
    net = Net()
    keywords = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),)), "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    for block in net.blocks:
        fully_shard(block, **keywords)
    fully_shard(net, **keywords)
    net._get_fsdp_state()._lazy_init()
    return net


def groups(net: Net) -> list:
    return [group for state in net._get_fsdp_state()._state_ctx.all_states for group in state._fsdp_param_groups]


def slowest(number: float) -> float:
    """The largest of all ranks'."""
    every = [0.0] * dist.get_world_size()
    dist.all_gather_object(every, number)
    return max(every)


def one_pass(net: Net) -> tuple[float, float]:
    """Seconds of the all-gathers and of the reduce-scatters of all groups, of the slowest rank; gradients are made between them."""
    gather = reduce = 0.0
    for group in groups(net):
        dist.barrier()
        start = time.perf_counter()
        group.unshard()
        group.wait_for_unshard()
        gather += time.perf_counter() - start
        for p in group.fsdp_params:
            p.unsharded_param.grad = torch.full_like(p.unsharded_param, 0.5)
        dist.barrier()
        start = time.perf_counter()
        group.post_backward()
        reduce += time.perf_counter() - start
        group.finalize_backward()
        group.comm_ctx.reduce_scatter_states.clear()
    net.zero_grad()
    return slowest(gather), slowest(reduce)


def live_bytes(net: Net, passes: int) -> tuple[int, int]:
    """The most bytes that a backward pass has live beyond those before it: in the pass where that is least, and where it is most. One more warms up."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        for i in range(passes + 1):
            loss = net(torch.randn(16, DIM)).float().square().mean()
            with record_function(f"backward {i}"):
                loss.backward()
            del loss
            net.zero_grad()
    events = sorted(seen.profiler.kineto_results.events(), key=lambda e: e.start_ns())
    found = []
    for i in range(1, passes + 1):
        (mark,) = (e for e in events if e.name() == f"backward {i}")
        live = most = 0
        for event in events:
            if event.name() == "[memory]" and mark.start_ns() <= event.start_ns() <= mark.start_ns() + mark.duration_ns():
                live += event.nbytes()
                most = max(most, live)
        found.append(most)
    return int(slowest(min(found))), int(slowest(max(found)))


def rank_main(options: argparse.Namespace) -> None:
    import tidec

    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['MEASURE_STORE']}", rank=rank, world_size=world)
    stock = model()
    params = sum(p.numel() for p in stock.parameters())
    ours = {mode: model() for mode in MODES}
    for mode, net in ours.items():
        tidec.install(net, mode=mode)
    rows: dict[str, list[tuple[float, float]]] = {"stock": [], **{m: [] for m in MODES}}
    nets = {"stock": stock, **ours}
    for i in range(options.passes + 1):
        for name in (list(nets) if i % 2 else list(nets)[::-1]):
            times = one_pass(nets[name])
            if i:       # the first one warms up
                rows[name].append(times)
    memory = {name: (*live_bytes(net, options.passes), tidec.report(net).arena_bytes if name != "stock" else 0) for name, net in nets.items()}
    stays = {mode: tidec.report(net).stock for mode, net in ours.items()}
    assert not any(stays.values()), stays
    for net in ours.values():
        tidec.uninstall(net)
    if rank == 0:
        found = {"params": params, "ranks": world, "passes": options.passes, "rows": [
            {"what": name, "all_gather_ms": round(1000 * statistics.median(a for a, _ in times), 2), "reduce_scatter_ms": round(1000 * statistics.median(b for _, b in times), 2),
             "live_bytes_of_backward": memory[name][0], "live_bytes_at_most": memory[name][1], "arena_bytes": memory[name][2]} for name, times in rows.items()]}
        print(json.dumps(found), flush=True)
    # As in examples/train_fsdp2.py: threads of gloo's are done with tensors before Python ends.
    dist.barrier()
    dist.destroy_process_group()


def launch(options: argparse.Namespace) -> int:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        processes = [
            subprocess.Popen([sys.executable, __file__, *sys.argv[1:]], stdout=subprocess.PIPE if r == 0 else subprocess.DEVNULL, stderr=subprocess.DEVNULL if r else None, text=True,
                             env={**os.environ, "RANK": str(r), "WORLD_SIZE": str(options.ranks), "MEASURE_STORE": store, "TIDEC_CACHE_DIR": str(Path(folder) / "cache")})
            for r in range(options.ranks)
        ]
        try:
            said, _ = processes[0].communicate(timeout=options.deadline)
            if any(p.wait(timeout=60) for p in processes):
                return 1
        finally:
            for p in processes:
                p.kill()
    found = json.loads(said.splitlines()[-1])
    stock = found["rows"][0]
    for row in found["rows"]:
        row["times_faster_all_gather"] = round(stock["all_gather_ms"] / row["all_gather_ms"], 2)
        row["times_faster_reduce_scatter"] = round(stock["reduce_scatter_ms"] / row["reduce_scatter_ms"], 2)
        print(f"{row['what']:>10}  all-gather {row['all_gather_ms']:8.1f} ms ({row['times_faster_all_gather']:.1f}x)   reduce-scatter {row['reduce_scatter_ms']:8.1f} ms "
              f"({row['times_faster_reduce_scatter']:.1f}x)   live in backward {row['live_bytes_of_backward'] / 2**20:7.1f} MiB + arenas {row['arena_bytes'] / 2**20:6.1f} MiB"
              f"   (seen up to {row['live_bytes_at_most'] / 2**20:.1f})")
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "load_before_and_now": [load, os.getloadavg()[0]], "torch": torch.__version__}
    RESULTS.write_text(json.dumps({"machine": machine, "at_least": MIN_RATIO, **found}, indent=1) + "\n", encoding="ascii")
    is_fast = all(min(r["times_faster_all_gather"], r["times_faster_reduce_scatter"]) >= MIN_RATIO for r in found["rows"][1:])
    is_small = all(r["live_bytes_of_backward"] + r["arena_bytes"] < stock["live_bytes_of_backward"] for r in found["rows"][1:])
    return 0 if is_fast and is_small else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--deadline", type=float, default=600, help="seconds (default: 600)")
    options = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(options)
        return 0
    return launch(options)


if __name__ == "__main__":
    sys.exit(main())
