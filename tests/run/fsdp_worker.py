"""One rank of a job that trains small models under FSDP2, stock and by plans, and compares bits. Run by test_fsdp.py with RANK and WORLD_SIZE set.

    fsdp_worker.py STORE CASE[/MODE]...      prints on rank 0 one JSON line a case
"""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from fsdp_model import Linear, Trace, batch, compare, net, run_cases, train
from torch import nn

from tidec.run.fsdp import HOOKS

# ---- cases: each gets a model and a trace, and trains

def plain(model, trace):
    train(model, trace, 20)


def accumulating(model, trace):
    """Three micro-batches a step: without synchronisation but for the last one, then with it in every one."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(20):
        for micro in range(3):
            if step % 2 == 0:
                model.set_requires_gradient_sync(micro == 2)
            loss = model(batch(10 * step + micro, model.width)).float().square().mean()
            trace.see(loss)
            loss.backward()
        for p in model.parameters():
            if p.grad is not None:
                trace.see_sum(p.grad)
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
    def training(model, trace):
        blocks = list(model.blocks)
        for i, block in enumerate(blocks):
            block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 1 + depth])
            block.set_modules_to_backward_prefetch(blocks[max(0, i - depth) : i][::-1])
        train(model, trace, 20)

    return training


class Viewed(nn.Module):
    """A block whose output is a view. NOTE: with one that uses its parameters in other ways too, what `changed_in_place` does ends stock with a segmentation fault."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second = Linear(width, width), Linear(width, width)

    def forward(self, x):
        y = self.second(torch.relu(self.first(x)))
        return y.view(y.shape)


class Changed(nn.Module):
    """Blocks whose outputs are written into once that is switched on."""

    def __init__(self, width: int = 17, blocks: int = 4):
        super().__init__()
        self.blocks, self.width, self.is_changing = nn.ModuleList(Viewed(width) for _ in range(blocks)), width, False

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
            if self.is_changing:
                x.add_(0.5)
        return x


def changed_in_place(model, trace):
    """What FSDP2 hangs on an output to gather before backward goes with the output's history where that is a view and written into. Stock then computes with
    parameters without storage and raises; a plan must not let it read what lies there (pytorch#181832)."""
    train(model, trace, 2)
    model.is_changing = True
    try:
        model(batch(90, model.width)).float().square().mean().backward()
        trace.say("no error")
    except RuntimeError as problem:
        trace.say(str(problem))


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
    """NOTE: FSDP2 sets both on a module alone, not on those below it."""
    def training(model, trace):
        for module in (*model.blocks, model):
            if factor is not None:
                module.set_gradient_divide_factor(factor)
            module.set_force_sum_reduction_for_comms(is_sum_forced)
        train(model, trace, 3)

    return training


@contextmanager
def without_loans() -> Iterator[None]:
    """A torch whose storages cannot be lent, as 2.11's."""
    def missing(*_):
        raise AssertionError("torch's own call lent a storage")

    fit, own = HOOKS.fit(), torch.UntypedStorage.__dict__.get("_swap_data_ptr_")
    HOOKS._fit, torch.UntypedStorage._swap_data_ptr_ = replace(fit, has_loan=False), missing
    try:
        yield
    finally:
        HOOKS._fit = fit
        if own is None:
            del torch.UntypedStorage._swap_data_ptr_
        else:
            torch.UntypedStorage._swap_data_ptr_ = own


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
    "lent by a library": ({}, two_forwards),
    "prefetching 1": ({}, prefetching(1)),
    "prefetching 2": ({}, prefetching(2)),
    "changed in place": ({"of": Changed}, changed_in_place),
    "assigning": ({}, assigning),
    "clipping": ({}, clipping),
    "optimizer in backward": ({}, optimizer_in_backward),
    "divide factor 1, sums forced": ({}, divided(1.0, True)),
    "sums forced": ({}, divided(None, True)),
}


def run(case: str) -> dict:
    name, _, mode = case.partition("/")
    options, training = CASES[name]

    def from_the_start(trace: Trace, install: Callable) -> None:
        model = net(**options)
        install(model)
        training(model, trace)

    with without_loans() if name == "lent by a library" else nullcontext():
        return compare(from_the_start, mode or "in_place")


if __name__ == "__main__":
    sys.exit(run_cases(run))
