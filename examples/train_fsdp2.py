"""Trains a small Llama with FSDP2 on made text, with its stock collectives or with tidec's: one line differs.

    python examples/train_fsdp2.py --ranks 4                 stock, 4 processes of this machine
    python examples/train_fsdp2.py --ranks 4 --tidec         the same model by plans; the loss curve is the same
    torchrun --nproc-per-node 4 examples/train_fsdp2.py --tidec

Prints the loss every few steps, seconds a step, and what the collectives were run by.
"""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

VOCABULARY, CONTEXT = 96, 64


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.wq, self.wo = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.wk, self.wv = (nn.Linear(dim, kv_heads * self.head_dim, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        batch, length, dim = x.shape
        q = rotated(self.wq(x).view(batch, length, self.heads, self.head_dim), rotation)
        k = rotated(self.wk(x).view(batch, length, self.kv_heads, self.head_dim), rotation)
        v = self.wv(x).view(batch, length, self.kv_heads, self.head_dim)
        k, v = (t.repeat_interleave(self.heads // self.kv_heads, dim=2) for t in (k, v))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, length, dim))


class Block(nn.Module):
    def __init__(self, dim: int, hidden: int, heads: int, kv_heads: int):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim), nn.RMSNorm(dim)
        self.attention = Attention(dim, heads, kv_heads)
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        y = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    def __init__(self, dim: int, layers: int, heads: int = 4, kv_heads: int = 2):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, dim)
        self.layers = nn.ModuleList(Block(dim, 8 * dim // 3, heads, kv_heads) for _ in range(layers))
        self.norm, self.output = nn.RMSNorm(dim), nn.Linear(dim, VOCABULARY, bias=False)
        self.head_dim = dim // heads

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
    words = [torch.randint(1, VOCABULARY, (int(torch.randint(2, 8, (1,), generator=draw)),), generator=draw) for _ in range(40)]
    follows = torch.randint(0, 40, (40, 3), generator=draw)
    walk = torch.Generator().manual_seed(seed)
    out, word = [], 0
    while sum(map(len, out)) < num_tokens:
        out += [words[word], torch.zeros(1, dtype=torch.long)]
        word = int(follows[word, int(torch.randint(0, 3, (1,), generator=walk))])
    return torch.cat(out)[:num_tokens]


def train(options: argparse.Namespace) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    else:
        torch.set_num_threads(1)
    device = "cuda" if on_gpu else "cpu"
    meeting = f"file://{os.environ['TRAIN_STORE']}" if "TRAIN_STORE" in os.environ else "env://"
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=meeting, rank=rank, world_size=world)

    torch.manual_seed(0)
    model = Llama(options.dim, options.layers).to(device)
    keywords = {"mesh": init_device_mesh(device, (world,)), "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    for layer in model.layers:
        fully_shard(layer, **keywords)
    fully_shard(model, **keywords)

    if options.tidec:
        import tidec

        tidec.install(model, mode=options.mode)         # the one line

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=on_gpu)
    tokens = text(1 << 14, seed=1 + rank)
    draw = torch.Generator().manual_seed(rank)
    start = time.perf_counter()
    for step in range(options.steps):
        at = torch.randint(0, len(tokens) - CONTEXT - 1, (options.batch,), generator=draw)
        rows = torch.stack([tokens[i : i + CONTEXT + 1] for i in at]).to(device)
        loss = F.cross_entropy(model(rows[:, :-1]).float().flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % options.every == 0 or step == options.steps - 1:
            dist.all_reduce(shown := loss.detach().clone())
            if rank == 0:
                print(f"step {step:4d}  loss {float(shown) / world:.5f}  {(time.perf_counter() - start) / (step + 1):.3f} s a step", flush=True)
    if options.tidec:
        if rank == 0:
            print(tidec.report(model))
        tidec.uninstall(model)
    dist.destroy_process_group()


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tidec", action="store_true", help="run the collectives by plans")
    parser.add_argument("--mode", default="in_place", choices=("in_place", "slot_reuse"), help="where gradients lie while they are reduced (default: in_place)")
    parser.add_argument("--ranks", type=int, default=4, help="processes, where torchrun has not started them (default: 4)")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10, help="print the loss every so many steps (default: 10)")
    parser.add_argument("--dim", type=int, default=96)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4, help="sequences a rank (default: 4)")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        return launch(options)
    train(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
