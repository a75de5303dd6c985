"""One rank of a job for public reports whose shapes or ranks are their own. Each case asserts on its own and gives numbers.

    fsdp_reports.py STORE CASE...      prints on rank 0 one JSON line a case
"""
from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from fsdp_life import QUICK, compiled, is_stock, is_untouched
from fsdp_model import MIXED, Linear, Net, Rounded, Trace, batch, compare, run_cases, train
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import tidec
from tidec.run.capture import groups_of
from tidec.run.fsdp import INSTALLED


def everyone() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def trained(model: nn.Module, inputs: int, steps: int = 2) -> list[str]:
    """Bits of a small training. NOTE: stock adds -0.0 and -0.0, a landing begins from 0.0: the sign of a zero is left out."""
    trace = Trace()
    for step in range(steps):
        model(batch(step, inputs)).float().square().sum().backward()
        for p in model.parameters():
            assert p.grad.to_local().any() or not p.grad.to_local().numel()
            trace.see(p.grad.to_local() + 0.0)
            with torch.no_grad():
                p.to_local().sub_(p.grad.to_local(), alpha=0.125)
            p.grad = None
    trace.see_model(model)
    return trace.seen


def is_shared(value: torch.Tensor) -> bool:
    """Whether it lies in memory that ranks share."""
    maps = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:tidec-node" in line]
    assert maps
    return any(int(low, 16) <= value.data_ptr() < int(high, 16) for low, high in maps)


def two_rows() -> dict:
    """pytorch#137342: two rows over eight ranks leave six of them with nothing."""
    seen = []
    for is_held in (False, True):
        torch.manual_seed(1)
        model = fully_shard(Linear(4096, 2), mesh=everyone(), mp_policy=MIXED)
        if is_held:
            tidec.install(model, **QUICK)
        seen.append(trained(model, 4096))
    layout = INSTALLED[model].teams[0].held[0].ring.plan.layout
    report = tidec.report(model)
    tidec.uninstall(model)
    (group,) = report.groups
    return {"is_equal": seen[0] == seen[1], "local": tuple(model.weight.to_local().shape), "landing": layout.landing_bytes, "real": layout.params[0].real_elems * 2,
            "shard": layout.shard_bytes, "is_as_planned": report.is_as_planned, "told": [c.done.ops[:2] for c in group.collectives], "stock": report.stock, "by_plan": report.by_plan}


def long_head() -> dict:
    """lightning-thunder#248: 32001 rows over eight ranks, on two emulated nodes of four lanes."""
    seen, views = [], []
    for is_held in (False, True):
        torch.manual_seed(1)
        model = fully_shard(Linear(64, 32001), mesh=everyone(), mp_policy=MIXED)
        if is_held:
            tidec.install(model, compiled("2x4", "long-head", model), require=True, **QUICK)

            def look(module: nn.Module, _: object) -> None:
                w = module.weight
                views.append((tuple(w.shape), w.is_contiguous(), w.storage_offset(), w.untyped_storage().nbytes(), is_shared(w)))

            model.register_forward_pre_hook(look)
        seen.append(trained(model, 64))
    report = tidec.report(model)
    tidec.uninstall(model)
    return {"is_equal": seen[0] == seen[1], "local": tuple(model.weight.to_local().shape), "views": views, "stock": report.stock, "is_as_planned": report.is_as_planned}


class Three(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(7, 2)), nn.Parameter(torch.randn(5))

    def forward(self, x):
        return (x @ Rounded.apply(self.a).t()).sum() + Rounded.apply(self.b).sum() * x.sum()


def copied() -> dict:
    """pytorch#82070: a copy of the state for a moving average, before and after a step, and while all is unsharded."""
    torch.manual_seed(1)
    model = fully_shard(Three(), mesh=everyone())
    tidec.install(model, **QUICK)
    copies = []
    for step in range(2):
        copies.append(copy.deepcopy(model.state_dict()))
        model(batch(step, 2)).backward()
        model.zero_grad()
    model.unshard()
    assert is_shared(model.a) and is_shared(model.b)
    copies.append(copy.deepcopy(model.state_dict()))
    model.reshard()
    assert tidec.report(model).by_plan and not tidec.report(model).stock
    values = [value.to_local() for state in copies for value in state.values()]
    assert not any(is_shared(v) for v in values if v.numel())
    assert all(torch.equal(a.to_local(), b.to_local()) for state in copies[1:] for a, b in zip(copies[0].values(), state.values()))
    tidec.uninstall(model)
    return {"shapes": [tuple(v.shape) for v in values[:2]], "offsets": sorted({v.storage_offset() for v in values})}


def alone() -> dict:
    """pytorch#144045: one rank, one value."""
    torch.manual_seed(1)
    plain = nn.Linear(1, 1, bias=False)
    model = fully_shard(copy.deepcopy(plain), mesh=everyone())
    tidec.install(model, **QUICK)
    assert is_stock() and is_untouched(model)
    for m in (plain, model):
        m(torch.tensor([[3.0]])).square().sum().backward()
    report = tidec.report(model)
    tidec.uninstall(model)
    return {"is_equal": torch.equal(plain.weight.grad, model.weight.grad.to_local()), "by_plan": report.by_plan, "reasons": [g.reason for g in report.groups]}


class Beside(nn.Module):
    def __init__(self):
        super().__init__()
        self.held, self.ignored = nn.Parameter(torch.randn(6)), nn.Parameter(torch.ones(5))

    def forward(self, x):
        return (Rounded.apply(self.held) * x).sum() + (self.ignored * float(dist.get_rank() + 1)).sum()


def ignored() -> dict:
    """LoongForge#189: what is left out of sharding has no place in a plan, and every rank keeps its own gradient."""
    grads, local = [], []
    for is_held in (False, True):
        torch.manual_seed(1)
        model = Beside()
        fully_shard(model, mesh=everyone(), ignored_params={model.ignored})
        if is_held:
            tidec.install(model, require=True, **QUICK)
        model(batch(0, 6, 1)).backward()
        assert not is_held or not is_shared(model.ignored)
        grads.append(model.ignored.grad.tolist())
        local.append(model.held.grad.to_local())
    (params,) = [live.params for live in groups_of(model)]
    rows = [r.real_elems for r in INSTALLED[model].teams[0].held[0].ring.plan.layout.params]
    report = tidec.report(model)
    tidec.uninstall(model)
    return {"grads": grads, "is_close": torch.allclose(*local, rtol=1e-6, atol=0), "params": params, "real": rows, "by_plan": report.by_plan, "stock": report.stock}


def fresh_group(trace: Trace, install: Callable) -> None:
    """pytorch#188567: installed straight after its process group was made, before anything else went over it."""
    torch.manual_seed(7)
    model = Net(blocks=1)
    mesh = DeviceMesh.from_group(dist.new_group(list(range(dist.get_world_size())), backend="gloo"), "cpu")
    fully_shard(model.blocks[0], mesh=mesh, mp_policy=MIXED)
    install(fully_shard(model, mesh=mesh, mp_policy=MIXED))
    train(model, trace, 2)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0, self.p1 = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))

    def forward(self, x, is_whole: bool):
        y = Rounded.apply(self.p0) * x
        return (y * Rounded.apply(self.p1) if is_whole else y).float().sum()


def mixed(trace: Trace, install: Callable) -> None:
    """pytorch#196996: of two parameters one has gradients that were kept in fp32, the other its first one, in bf16. Stock stops, with an assertion."""
    torch.manual_seed(7)
    model = fully_shard(Two(), mesh=everyone(), mp_policy=MIXED)
    install(model)
    model.set_requires_gradient_sync(False)
    model(batch(0, 6), False).backward()
    model.set_requires_gradient_sync(True)
    try:
        model(batch(1, 6), True).backward()
        trace.say("no error")
    except (AssertionError, RuntimeError) as problem:
        trace.say(f"{type(problem).__name__}: {problem}")
    trace.seen.append(f"{[p.grad is None for p in model.parameters()]}")


def divided(trace: Trace, install: Callable) -> None:
    """pytorch#162338: gloo knows no division by a factor, so that stock needs sums that are forced; a plan scales by itself. Half of a sum is exact either way."""
    torch.manual_seed(7)
    model = Net(blocks=1)
    mesh = everyone()
    for module in (model.blocks[0], model):
        fully_shard(module, mesh=mesh, mp_policy=MIXED)
    install(model)
    for factor in (1.0, 2.0):
        for module in (model.blocks[0], model):
            module.set_gradient_divide_factor(factor)
            module.set_force_sum_reduction_for_comms(model not in INSTALLED)
        model(batch(0, model.width)).float().square().mean().backward()
        for p in model.parameters():
            trace.see_sum(p.grad)
            p.grad = None


class Tied(Net):
    """The head is the embedding, transposed or not: one tensor with two names."""

    def __init__(self):
        super().__init__(blocks=1)
        self.head = Linear(self.width, self.width)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return F.gelu(super().forward(x))


def tied(trace: Trace, install: Callable) -> None:
    torch.manual_seed(7)
    model, mesh = Tied(), everyone()
    for module in (model.blocks[0], model):
        fully_shard(module, mesh=mesh, mp_policy=MIXED)
    install(model)
    train(model, trace, 3)
    assert model.head.weight is model.embed.weight


def compiling(trace: Trace, install: Callable) -> None:
    """pytorch#186601: compiled autograd says that it is on in one step of three. With it, stock FSDP2 of torch 2.13 gives no gradients; here it traces nothing."""
    from torch._dynamo import compiled_autograd

    torch.manual_seed(7)
    model, mesh = Net(blocks=1), everyone()
    for module in (model.blocks[0], model):
        fully_shard(module, mesh=mesh, mp_policy=MIXED)
    install(model)
    optimizer = None
    for step in range(3):
        compiled_autograd.compiled_autograd_enabled = step == 1
        optimizer = train(model, trace, 1, first=step, optimizer=optimizer)


CASES: dict[str, Callable[[], dict]] = {
    "two rows": two_rows, "long head": long_head, "copied": copied, "alone": alone, "ignored": ignored,
    **{name: lambda case=case: compare(case, "slot_reuse") for name, case in (("fresh group", fresh_group), ("mixed", mixed), ("divided", divided), ("tied", tied),
                                                                                   ("compiling", compiling))},
}


if __name__ == "__main__":
    sys.exit(run_cases(lambda case: CASES[case]()))
