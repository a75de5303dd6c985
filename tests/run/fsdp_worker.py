"""One rank of a job that trains small models under FSDP2, stock and by plans, and compares bits. Run by test_fsdp.py with RANK and WORLD_SIZE set.

    fsdp_worker.py STORE CASE...      prints on rank 0 one JSON line a case

Gradients pass through a hook that rounds them to multiples of 2^-10 below 2^6, so that every sum over ranks is exact, in whatever order it is added.
"""
from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

import tidec

MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Rounded(torch.autograd.Function):
    """The same values; gradients rounded."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return (grad.float() * 1024).round().clamp(-65535, 65535).div(1024).to(grad.dtype)


class Linear(nn.Module):
    """A linear layer whose gradients are rounded."""

    def __init__(self, inputs: int, outputs: int, bias: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.randn(outputs) / 8) if bias else None

    def forward(self, x):
        return F.linear(x, Rounded.apply(self.weight), None if self.bias is None else Rounded.apply(self.bias))


class Block(nn.Module):
    """A residual block with a 1-D parameter, an odd width, and a parameter with fewer rows than ranks."""

    def __init__(self, width: int, hidden: int, is_frozen: bool = False, is_unused: bool = False):
        super().__init__()
        self.up, self.down = Linear(width, hidden, bias=True), Linear(hidden, width)
        self.scale = nn.Parameter(torch.randn(width))
        self.few = nn.Parameter(torch.randn(2, width))
        self.frozen = nn.Parameter(torch.randn(3, 5), requires_grad=False) if is_frozen else None
        self.unused = nn.Parameter(torch.randn(7, 3)) if is_unused else None

    def forward(self, x):
        y = self.down(F.gelu(self.up(x))) * Rounded.apply(self.scale)
        return x + y + Rounded.apply(self.few).sum(0) * 0.125


class Net(nn.Module):
    def __init__(self, width: int = 17, hidden: int = 35, blocks: int = 4, **options):
        super().__init__()
        self.embed = Linear(width, width)
        self.blocks = nn.ModuleList(Block(width, hidden, **options) for _ in range(blocks))
        self.head = Linear(width, 11)
        self.width = width

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def net(*, policy: MixedPrecisionPolicy | None = MIXED, mesh=None, last_kept: bool = False, checkpointing: bool = False, **options) -> Net:
    """A model under fully_shard, the same in every call."""
    torch.manual_seed(7)
    model = Net(**options)
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    if checkpointing:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        model.blocks = nn.ModuleList(checkpoint_wrapper(b) for b in model.blocks)
    keywords = {"mesh": mesh, **({} if policy is None else {"mp_policy": policy})}
    for i, block in enumerate(model.blocks):
        fully_shard(block, **keywords, reshard_after_forward=not (last_kept and i == len(model.blocks) - 1))
    return fully_shard(model, **keywords)


def batch(step: int, width: int, rows: int = 4) -> torch.Tensor:
    """Another one in every rank and step."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(rows, width, generator=generator)


class Trace:
    """What a run gave: numbers in order, as bits."""

    def __init__(self):
        self.seen: list[str] = []

    def see(self, value: torch.Tensor) -> None:
        value = value.detach().clone()     # numpy would make the storage of a parameter one that FSDP2 cannot free
        value = value.to_local() if hasattr(value, "to_local") else value
        self.seen.append(hashlib.sha256(value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:16])

    def see_model(self, model: nn.Module) -> None:
        for p in model.parameters():
            self.see(p)


def train(model: Net, trace: Trace, steps: int, *, first: int = 0, optimizer=None, backward: Callable | None = None) -> torch.optim.Optimizer:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(first, first + steps):
        loss = model(batch(step, model.width)).float().square().mean()
        trace.see(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    trace.see_model(model)
    return optimizer


# ---- cases: each gets a model and a trace, and trains

def plain(model, trace):
    train(model, trace, 20)


def accumulating(model, trace):
    """Three micro-batches a step: without synchronisation but for the last one, then with it in every one."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(6):
        for micro in range(3):
            if step % 2 == 0:
                model.set_requires_gradient_sync(micro == 2)
            loss = model(batch(10 * step + micro, model.width)).float().square().mean()
            trace.see(loss)
            loss.backward()
        for p in model.parameters():
            if p.grad is not None:
                trace.see(p.grad)
        optimizer.step()
        optimizer.zero_grad()
        model.set_requires_gradient_sync(True)
    trace.see_model(model)


def evaluating(model, trace):
    """Forward passes without gradients between steps."""
    optimizer = train(model, trace, 2)
    for step in range(3):
        with torch.no_grad():
            trace.see(model(batch(50 + step, model.width)))
        with torch.inference_mode():
            model(batch(60 + step, model.width))
        train(model, trace, 1, first=2 + step, optimizer=optimizer)


def unsharding(model, trace):
    """All blocks unsharded at once, and read."""
    optimizer = train(model, trace, 2)
    for block in model.blocks:
        block.unshard()
    for block in model.blocks:
        trace.see(block.up.weight)
    for block in model.blocks:
        block.reshard()
    handles = [block.unshard(async_op=True) for block in model.blocks[:2]]
    for handle in reversed(handles):
        handle.wait()
    trace.see(model.blocks[1].up.weight)
    for block in model.blocks[:2]:
        block.reshard()
    train(model, trace, 2, first=2, optimizer=optimizer)


def two_forwards(model, trace):
    """Two forward passes before one backward pass."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(4):
        loss = sum(model(batch(2 * step + i, model.width)).float().square().mean() for i in range(2))
        trace.see(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    trace.see_model(model)


def prefetching(depth: int):
    def run(model, trace):
        blocks = list(model.blocks)
        for i, block in enumerate(blocks):
            block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 1 + depth])
            block.set_modules_to_backward_prefetch(blocks[max(0, i - depth) : i][::-1])
        train(model, trace, 4)

    return run


def changed_in_place(model, trace):
    """Writing into a view of an output: stock raises, and so must a model that runs by plans (pytorch#181832)."""
    train(model, trace, 1)
    hidden = model.blocks[0](batch(90, model.width))
    try:
        hidden.view(-1)[::2].add_(1.0)
        model.blocks[1](hidden).float().sum().backward()
        trace.seen.append("no error")
    except RuntimeError as problem:
        trace.seen.append(str(problem)[:60])


def assigning(model, trace):
    optimizer = train(model, trace, 2)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    train(model, trace, 2, first=2)
    assert optimizer is not None


def clipping(model, trace):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        model(batch(step, model.width)).float().square().mean().backward()
        trace.see(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        optimizer.step()
        optimizer.zero_grad()
    trace.see_model(model)


def optimizer_in_backward(model, trace):
    for p in model.parameters():
        if p.requires_grad:
            def step(p):
                with torch.no_grad():
                    p.to_local().add_(p.grad.to_local(), alpha=-0.01)
                p.grad = None
            p.register_post_accumulate_grad_hook(step)
    for step_ in range(3):
        loss = model(batch(step_, model.width)).float().square().mean()
        trace.see(loss)
        loss.backward()
    trace.see_model(model)


def divided(factor: float | None, is_sum_forced: bool):
    def run(model, trace):
        if factor is not None:
            model.set_gradient_divide_factor(factor)
        model.set_force_sum_reduction_for_comms(is_sum_forced)
        train(model, trace, 3)

    return run


CASES: dict[str, tuple[dict, Callable]] = {
    "plain": ({}, plain),
    "frozen and unused": ({"is_frozen": True, "is_unused": True}, plain),
    "fp32": ({"policy": None}, plain),
    "accumulating": ({}, accumulating),
    "checkpointing": ({"checkpointing": True}, plain),
    "last block kept": ({"last_kept": True}, evaluating),
    "evaluating": ({}, evaluating),
    "unsharding": ({}, unsharding),
    "two forwards": ({}, two_forwards),
    "prefetching 1": ({}, prefetching(1)),
    "prefetching 2": ({}, prefetching(2)),
    "changed in place": ({}, changed_in_place),
    "assigning": ({}, assigning),
    "clipping": ({}, clipping),
    "optimizer in backward": ({}, optimizer_in_backward),
    "divide factor 1, sums forced": ({}, divided(1.0, True)),
    "sums forced": ({}, divided(None, True)),
}


def compare(name: str, mode: str) -> dict:
    options, case = CASES[name]
    stock, ours = Trace(), Trace()
    case(net(**options), stock)
    model = net(**options)
    tidec.install(model, mode=mode, poison=True)
    case(model, ours)
    report = tidec.report(model)
    tidec.uninstall(model)
    return {"equal": stock.seen == ours.seen, "seen": len(ours.seen), "first": next((i for i, (a, b) in enumerate(zip(stock.seen, ours.seen)) if a != b), None),
            "by_plan": report.by_plan, "stock": report.stock}


def main(store: str, cases: list[str]) -> int:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for case in cases:
        name, _, mode = case.partition("/")
        found = compare(name, mode or "in_place")
        gathered = [None] * world
        dist.all_gather_object(gathered, found)
        if rank == 0:
            print(json.dumps({"case": case, "ranks": gathered}), flush=True)
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
