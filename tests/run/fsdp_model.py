"""What the ranks of a test under FSDP2 share: small models, made data, a trace of every number as bits, and how a rank runs its cases.

Gradients pass through a hook that rounds them to multiples of 2^-10 below 2^6, so that every sum over ranks is exact, in whatever order it is added.

WORKER_DEVICE=cuda has each rank train on the GPU of its number, WORKER_PLANS=BUNDLE gives plans, WORKER_WIDTH a model of another width.
"""
from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp_module

import tidec
from tidec.run.collective import Reducer

DEVICE, PLANS, WIDTH = os.environ.get("WORKER_DEVICE", "cpu"), os.environ.get("WORKER_PLANS"), int(os.environ.get("WORKER_WIDTH", "17"))
MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
_PR_SET_PDEATHSIG = 1


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
    def __init__(self, width: int = WIDTH, hidden: int = 2 * WIDTH + WIDTH % 2, blocks: int = 4, **options):
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


def net(*, of: Callable[..., nn.Module] = Net, policy: MixedPrecisionPolicy | None = MIXED, mesh=None, last_kept: bool = False, checkpointing: bool = False, **options):
    """A model under fully_shard, the same in every call."""
    torch.manual_seed(7)
    model = of(**options).to(DEVICE)
    mesh = mesh or init_device_mesh(DEVICE, (dist.get_world_size(),))
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
    return torch.randn(rows, width, generator=generator).to(DEVICE)


class Trace:
    """What a run gave: numbers in order, as bits."""

    def __init__(self):
        self.seen: list[str] = []
        self.said: list[str] = []

    def say(self, text: str) -> None:
        """What a run did that is no number, such as an error."""
        self.said.append(text)
        self.seen.append(text)

    def see(self, value: torch.Tensor) -> None:
        value = value.detach().clone()     # numpy would make the storage of a parameter one that FSDP2 cannot free
        value = value.to_local() if hasattr(value, "to_local") else value
        self.seen.append(hashlib.sha256(value.contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes()).hexdigest()[:16])

    def see_sum(self, value: torch.Tensor) -> None:
        """A sum over ranks. NOTE: of one that is zero the sign does not count, -0 where every rank has -0: a plan's sums begin from +0."""
        value = value.detach()
        self.see((value.to_local() if hasattr(value, "to_local") else value) + 0.0)

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


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts the collectives that FSDP2 itself asks for, whoever runs them."""
    counts: Counter[str] = Counter()

    def counting(name: str, function: Callable) -> Callable:
        def call(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    before = {name: getattr(fsdp_module, name) for name in ("foreach_all_gather", "foreach_reduce")}
    for name, function in before.items():
        setattr(fsdp_module, name, counting(name, function))
    try:
        yield counts
    finally:
        for name, function in before.items():
            setattr(fsdp_module, name, function)


def codes(stock: Mapping[str, int]) -> dict[str, int]:
    """Calls that stayed stock, by the codes of their reasons."""
    found: Counter[str] = Counter()
    for why, count in stock.items():
        found[why.split()[0]] += count
    return dict(found)


# A case gets a trace, and what installs a model: nothing where it is run stock.
Case = Callable[["Trace", Callable], None]


def compare(case: Case, mode: str) -> dict:
    """Run a case stock and by plans. Gives where their numbers differ, what stock said, and how many collectives FSDP2 asked for after the last install, plans ran, and stayed stock."""
    stock, ours, models = Trace(), Trace(), []
    with counted() as counts:
        case(stock, lambda model, **options: counts.clear())

    def install(model: nn.Module, **options) -> None:
        tidec.install(model, **{"plans": PLANS, "mode": mode, "poison": True, "deadline_s": 60.0, **options})
        models.append(model)

    accumulated = []
    reduce = Reducer.reduce
    Reducer.reduce = lambda self, *args, accumulate, **kwargs: accumulated.append(accumulate) or reduce(self, *args, accumulate=accumulate, **kwargs)
    try:
        case(ours, install)
    finally:
        Reducer.reduce = reduce
    reports = [tidec.report(model) for model in models]
    for model in models:
        tidec.uninstall(model)
    calls = [(c.by_plan, c.over) for r in reports for g in r.groups for c in g.collectives]
    return {"is_as_planned": all(r.is_as_planned for r in reports), "over": sum(over for _, over in calls), "under way": sum(by_plan - over for by_plan, over in calls),
            "seen": len(ours.seen), "said": stock.said, "differs": [i for i, (a, b) in enumerate(zip(stock.seen, ours.seen, strict=True)) if a != b], "asked": counts.total(),
            "by_plan": sum(r.by_plan for r in reports), "stock": codes(Counter({k: v for r in reports for k, v in r.stock.items()})),
            "whole": sorted({g.reason.split()[0] for r in reports for g in r.groups if g.reason}), "added": sum(accumulated)}


def run_cases(run: Callable[[str], dict]) -> int:
    """Join the job, `STORE CASE...` on the command line, and run each case on all ranks; rank 0 prints a JSON line a case. A rank ends with whoever started it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    store, *cases = sys.argv[1:]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if DEVICE == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    for case in cases:
        gathered = [None] * world
        dist.all_gather_object(gathered, run(case))
        if rank == 0:
            print(json.dumps({"case": case, "ranks": gathered}), flush=True)
    # Models go before their process groups, and no rank goes while another still talks to it.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    return 0
