"""Trains a Llama with FSDP2 on made text, with its stock collectives or with tidec's: one line differs.

    python examples/train_fsdp2.py --ranks 4                 stock, 4 processes of this machine
    python examples/train_fsdp2.py --ranks 4 --tidec         the same model by plans; the loss curve is the same
    torchrun --nproc-per-node 4 examples/train_fsdp2.py --tidec

On GPUs, one process a GPU; where plans cannot be compiled, they are compiled elsewhere:

    tidec capture --world 2 -o groups.json examples/train_fsdp2.py --size 1b
    tidec compile --topo 1x2 --group groups.json -o plans
    CUDA_DEVICE_MAX_CONNECTIONS=32 torchrun --nproc-per-node 2 examples/train_fsdp2.py --size 1b --tokens 8192 --tidec --plans plans

Prints the loss every few steps, seconds a step and on GPUs the peak memory, both from the third step on, and what the collectives were run by.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

# Of the made text.
CHARACTERS = 96
# Steps that are not measured: the first two allocate.
WARM_UP = 2


@dataclass(frozen=True)
class Size:
    dim: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int


SIZES = {
    "tiny": Size(96, 4, 256, 4, 2, CHARACTERS, 64),
    "small": Size(256, 4, 768, 8, 4, 256, 256),
    "1b": Size(2048, 16, 8192, 32, 8, 32768, 2048),
    "3b": Size(3072, 28, 8192, 24, 8, 32768, 2048),
}


class Rounded(torch.autograd.Function):
    """The same values; gradients are rounded to multiples of 2^-10 below 2^6, so that every sum over ranks is exact, in whatever order it is added."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return (grad.float() * 1024).round().clamp(-65535, 65535).div(1024).to(grad.dtype)


class Weight(nn.Module):
    """A module with a weight, whose gradient is rounded where that is asked for."""

    is_rounded = False

    def __init__(self, *shape: int, scale: float):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape) * scale if scale else torch.ones(shape))

    def read(self) -> torch.Tensor:
        return Rounded.apply(self.weight) if self.is_rounded else self.weight


class Linear(Weight):
    def __init__(self, inputs: int, outputs: int):
        super().__init__(outputs, inputs, scale=inputs**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.read())


class Norm(Weight):
    def __init__(self, dim: int):
        super().__init__(dim, scale=0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.read(), 1e-5)


class Embedding(Weight):
    def __init__(self, rows: int, dim: int):
        super().__init__(rows, dim, scale=1.0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.embedding(tokens, self.read())


class Attention(nn.Module):
    def __init__(self, size: Size):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = size.heads, size.kv_heads, size.dim // size.heads
        self.wq, self.wo = Linear(size.dim, size.dim), Linear(size.dim, size.dim)
        self.wk, self.wv = (Linear(size.dim, size.kv_heads * self.head_dim) for _ in range(2))

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        q = rotated(self.wq(x).view(batch, length, self.heads, self.head_dim), rotation)
        k = rotated(self.wk(x).view(batch, length, self.kv_heads, self.head_dim), rotation)
        v = self.wv(x).view(batch, length, self.kv_heads, self.head_dim)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=2) for t in (k, v))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, length, dim))


class Block(nn.Module):
    def __init__(self, size: Size):
        super().__init__()
        self.attention_norm, self.ffn_norm = Norm(size.dim), Norm(size.dim)
        self.attention = Attention(size)
        self.w1, self.w3 = Linear(size.dim, size.hidden), Linear(size.dim, size.hidden)
        self.w2 = Linear(size.hidden, size.dim)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        y = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    def __init__(self, size: Size):
        super().__init__()
        self.embedding = Embedding(size.vocabulary, size.dim)
        self.layers = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm, self.output = Norm(size.dim), Linear(size.dim, size.vocabulary)
        self.head_dim = size.dim // size.heads

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        angles = torch.outer(torch.arange(tokens.shape[1], device=x.device), 10000.0 ** (-torch.arange(0, self.head_dim, 2, device=x.device) / self.head_dim))
        rotation = torch.polar(torch.ones_like(angles), angles)
        for layer in self.layers:
            x = layer(x, rotation)
        return self.output(self.norm(x))


def rotated(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotary positions. x: [batch, length, heads, head_dim]; rotation: [length, head_dim / 2], complex."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation[:, None]).flatten(-2).to(x.dtype)


def text(num_tokens: int, seed: int) -> torch.Tensor:
    """Made text: words of a small dictionary in a grammar of their own, as character codes below 96."""
    draw = torch.Generator().manual_seed(5)
    words = [torch.randint(1, CHARACTERS, (int(torch.randint(2, 8, (1,), generator=draw)),), generator=draw) for _ in range(40)]
    follows = torch.randint(0, 40, (40, 3), generator=draw)
    walk = torch.Generator().manual_seed(seed)
    out, length, word = [], 0, 0
    while length < num_tokens:
        out += [words[word], torch.zeros(1, dtype=torch.long)]
        length += len(words[word]) + 1
        word = int(follows[word, int(torch.randint(0, 3, (1,), generator=walk))])
    return torch.cat(out)[:num_tokens]


def sharded(options: argparse.Namespace, device: str, world: int) -> Llama:
    """The model under fully_shard, the same in every run."""
    torch.manual_seed(0)
    with torch.device(device):
        model = Llama(SIZES[options.size])
    for module in model.modules():
        if isinstance(module, Weight):
            module.is_rounded = options.round_gradients
    return under_fsdp2(model, options, device, world)


def under_fsdp2(model: Llama, options: argparse.Namespace, device: str, world: int) -> Llama:
    if options.checkpoint:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        model.layers = nn.ModuleList(checkpoint_wrapper(layer) for layer in model.layers)
    keywords = {"mesh": init_device_mesh(device, (world,)), "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    for layer in model.layers:
        fully_shard(layer, **keywords)
    fully_shard(model, **keywords)
    layers = list(model.layers)
    for i, layer in enumerate(layers if options.prefetch else ()):
        layer.set_modules_to_forward_prefetch(layers[i + 1 : i + 1 + options.prefetch])
        layer.set_modules_to_backward_prefetch(layers[max(0, i - options.prefetch) : i][::-1])
    return model


def loss_of(model: Llama, rows: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(rows[:, :-1]).float().flatten(0, 1), rows[:, 1:].flatten())


class Clock:
    """Milliseconds from tick to tick: of the GPU, without waiting for it, or of the host."""

    def __init__(self, on_gpu: bool):
        self.on_gpu, self.ticks = on_gpu, []

    def tick(self) -> None:
        if self.on_gpu:
            self.ticks.append(torch.cuda.Event(enable_timing=True))
            self.ticks[-1].record()
        else:
            self.ticks.append(time.perf_counter())

    def steps(self) -> list[float]:
        if self.on_gpu:
            torch.cuda.synchronize()
        return [a.elapsed_time(b) if self.on_gpu else 1000 * (b - a) for a, b in zip(self.ticks, self.ticks[1:])]


def join(options: argparse.Namespace) -> str:
    """Become a rank of the job; gives the kind of device it trains on."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = options.device == "cuda" or options.device == "auto" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    else:
        torch.set_num_threads(1)
    meeting = f"file://{os.environ['TRAIN_STORE']}" if "TRAIN_STORE" in os.environ else "env://"
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=meeting, rank=rank, world_size=world)
    return "cuda" if on_gpu else "cpu"


def train(options: argparse.Namespace, device: str, around: Callable[[int], AbstractContextManager] = lambda step: nullcontext()) -> list[dict]:
    """What every rank measured. around: each step happens in its context."""
    rank, world, on_gpu = dist.get_rank(), dist.get_world_size(), device == "cuda"
    torch.use_deterministic_algorithms(options.round_gradients, warn_only=True)
    model, size = sharded(options, device, world), SIZES[options.size]

    if options.tidec:
        import tidec

        tidec.install(model, plans=options.plans, mode=options.mode, require=options.require, deadline_s=options.deadline)         # the one line

    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, fused=on_gpu)
    batch = max(1, options.tokens // size.context) if options.tokens else options.batch
    tokens = text(max(1 << 14, 4 * size.context), seed=1 + rank)
    draw = torch.Generator().manual_seed(rank)

    def rows() -> torch.Tensor:
        at = torch.randint(0, len(tokens) - size.context - 1, (batch,), generator=draw)
        return torch.stack([tokens[i : i + size.context + 1] for i in at]).to(device)

    clock, losses, shown, host = Clock(on_gpu), [], 0, []
    for step in range(options.steps):
        if step == WARM_UP and on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        clock.tick()
        begin = time.perf_counter()
        if options.evaluate and step % options.evaluate == options.evaluate - 1:
            with torch.no_grad():
                losses.append(loss_of(model, rows()))
        with around(step):
            loss = loss_of(model, rows())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
        host.append(1000 * (time.perf_counter() - begin))
        if step % options.every == 0 or step == options.steps - 1:
            told = torch.stack(losses[shown:])
            dist.all_reduce(told)
            if rank == 0:
                print(f"step {step:4d}  loss {float(told[-1]) / world:.5f}", flush=True)
    clock.tick()
    result = measured(clock, host, torch.stack(losses), batch * size.context, on_gpu)
    if options.tidec:
        report = tidec.report(model)
        result |= {"arena_bytes": report.arena_bytes, "by_plan": report.by_plan, "stock_calls": report.stock, "is_as_planned": report.is_as_planned}
        if rank == 0:
            print(report)
        tidec.uninstall(model)
    result["digest"] = digest(model) if options.digest else ""
    every = [None] * world
    dist.all_gather_object(every, result)
    if rank == 0:
        print(f"{result['step_ms']:.1f} ms a step, {result['tokens']} tokens a rank" + (f", peak {(result['peak_bytes'] + result.get('arena_bytes', 0)) / 2**30:.2f} GiB" if on_gpu else ""))
        if options.json:
            Path(options.json).write_text(json.dumps({"options": vars(options), "torch": torch.__version__, "world": world, "ranks": every}))
    return every


def measured(clock: Clock, host: list[float], losses: torch.Tensor, tokens: int, on_gpu: bool) -> dict:
    """Losses, every step's milliseconds and their median after the warm-up, what torch's allocator gave out and held at most after it, what all of the GPU's memory that is
    taken is at the end, and the host's milliseconds to ask for a step."""
    steps = clock.steps()
    counted, taken = steps[WARM_UP:] or steps, torch.cuda.mem_get_info() if on_gpu else (0, 0)
    return {"losses": losses.tolist(), "steps_ms": [round(ms, 3) for ms in steps], "step_ms": statistics.median(counted), "tokens": tokens, "host_ms": statistics.median(host[WARM_UP:] or host),
            "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else 0, "reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else 0, "taken_bytes": taken[1] - taken[0] if on_gpu else 0}


def digest(model: Llama) -> str:
    """sha256 of this rank's shards of all parameters."""
    found = hashlib.sha256()
    for p in model.parameters():
        found.update(p.detach().to_local().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()


def launch(options: argparse.Namespace) -> int:
    """Run as many processes of this script; the first one that fails ends all."""
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen([sys.executable, __file__, *sys.argv[1:]],
                             env={**os.environ, "RANK": str(r), "WORLD_SIZE": str(options.ranks), "TRAIN_STORE": str(Path(folder) / "store")})
            for r in range(options.ranks)
        ]
        try:
            while any(p.poll() is None for p in processes):
                if any(p.poll() for p in processes):
                    break
                time.sleep(0.1)
        finally:
            for p in processes:
                p.kill()
        return max(abs(p.wait()) for p in processes)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidec", action="store_true", help="run the collectives by plans")
    parser.add_argument("--mode", default="in_place", choices=("in_place", "slot_reuse"), help="where gradients lie while they are reduced (default: in_place)")
    parser.add_argument("--ranks", type=int, default=4, help="processes, where torchrun has not started them (default: 4)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--plans", help="a bundle; without it plans are compiled, or found in the cache")
    parser.add_argument("--require", action="store_true", help="end where a group does not run by plans")
    parser.add_argument("--size", default="tiny", choices=tuple(SIZES))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10, help="print the loss every so many steps (default: 10)")
    parser.add_argument("--batch", type=int, default=4, help="sequences a rank (default: 4)")
    parser.add_argument("--tokens", type=int, default=0, help="tokens a rank and step, in place of --batch")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--checkpoint", action="store_true", help="compute activations anew in backward")
    parser.add_argument("--prefetch", type=int, default=0, help="how many layers are gathered ahead (default: as FSDP2 does)")
    parser.add_argument("--evaluate", type=int, default=0, help="a forward pass without gradients before every so many-th step")
    parser.add_argument("--round-gradients", action="store_true", help="round gradients so that sums are exact: then stock and tidec have the same bits")
    parser.add_argument("--digest", action="store_true", help="sha256 of every rank's parameters at the end, in the JSON")
    parser.add_argument("--json", help="a file for what was measured on every rank")
    parser.add_argument("--deadline", type=float, default=1800.0, help="seconds that a collective waits for another rank (default: 1800)")
    return parser


def main() -> int:
    options = arguments().parse_args()
    if "RANK" not in os.environ:
        return launch(options)
    train(options, join(options))
    # NOTE: a thread of gloo's may still have tensors of the last collective when that is over, and ends the process if Python has ended by then (torch 2.13).
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
