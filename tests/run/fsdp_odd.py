"""One rank of a job whose gradients, groups and first calls are odd: stock and by plans.

    fsdp_odd.py STORE CASE[/MODE]...      prints on rank 0 one JSON line a case
"""
from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from fsdp_model import Case, Trace, batch, compare, net, run_cases, train
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.fsdp import fully_shard


class Phase(nn.Module):
    """The gradient of `im` is a view with the bit that says that its values are to be negated when they are read."""

    def __init__(self):
        super().__init__()
        self.re, self.im = nn.Parameter(torch.ones(1)), nn.Parameter(torch.full((1,), 0.5))

    def forward(self, x):
        return torch.view_as_real((torch.conj(torch.complex(self.re, self.im)) * x).resolve_conj()).sum()


class Summed(torch.autograd.Function):
    """In backward a sum over all ranks that may still be under way when FSDP2 gets it: an AsyncCollectiveTensor."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return all_reduce(gradient, "sum", dist.group.WORLD)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 3))

    def forward(self, x):
        return (Summed.apply(self.weight) * x).sum()


def odd_gradients(of: Callable[[], nn.Module]) -> Case:
    def training(trace: Trace, install: Callable) -> None:
        model = fully_shard(of())
        install(model)
        for step in range(3):
            model(torch.full((1,), 1.0 + step)).backward()
            for p in model.parameters():
                trace.see_sum(p.grad)
        trace.see_model(model)

    return training


def inference_first(trace: Trace, install: Callable) -> None:
    """What a plan packs shards in is made in inference mode, and written to in training."""
    model = net(blocks=3)
    install(model)
    with torch.no_grad():
        trace.see(model(batch(0, model.width)))
    with torch.inference_mode():
        for block in model.blocks[:2]:
            block.unshard()
        trace.see(model(batch(0, model.width)))
    train(model, trace, 2)


class Folded(nn.Module):
    """Two groups that move the same: as many rows of as many values, of other shapes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32, bias=False), nn.Conv1d(4, 32, 4, bias=False)

    def forward(self, x):
        return self.first(x).sum() + self.second(x.view(-1, 4, 4)).sum()


def same_rows(trace: Trace, install: Callable) -> None:
    torch.manual_seed(3)
    model = Folded()
    for layer in (model.first, model.second):
        fully_shard(layer)
    install(fully_shard(model))
    for step in range(3):
        model(batch(step, 16).round()).backward()
        for p in model.parameters():
            trace.see_sum(p.grad)


CASES: dict[str, Case] = {"negated": odd_gradients(Phase), "under way": odd_gradients(Shared), "inference first": inference_first, "same rows": same_rows}


def run(case: str) -> dict:
    name, _, mode = case.partition("/")
    return compare(CASES[name], mode or "in_place")


if __name__ == "__main__":
    sys.exit(run_cases(run))
