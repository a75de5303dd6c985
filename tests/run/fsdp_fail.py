"""One rank of a job in which something goes wrong. Prints what it found; how it ends is looked at by the test.

    fsdp_fail.py STORE CASE
"""
from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from fsdp_life import is_stock, is_untouched, refused
from fsdp_model import MIXED, Linear, Net, Trace, batch, net, run_cases, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

import tidec

DEADLINE_S = 6.0


def other_model() -> dict:
    """NCAR/miles-credit#416: one process believes that a parameter has 4 rows, the others 7."""
    model = nn.Sequential(nn.Linear(2, 4 if dist.get_rank() == 2 else 7, bias=False))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    code, text = refused(lambda: tidec.install(model, deadline_s=DEADLINE_S))
    assert is_stock() and is_untouched(model)
    good = net(blocks=1)
    tidec.install(good, deadline_s=60.0)
    train(good, Trace(), 1)
    tidec.uninstall(good)
    return {"code": code, "text": text}


def other_arguments() -> dict:
    model = net(blocks=1)
    found = {"mode": refused(lambda: tidec.install(model, mode="slot_reuse" if dist.get_rank() else "in_place"))}
    if dist.get_rank() == 3:
        os.environ["TIDEC_DISABLE"] = "1"
    found["switch"] = refused(lambda: tidec.install(model))
    os.environ.pop("TIDEC_DISABLE", None)
    assert is_stock() and is_untouched(model)
    return found


def absent() -> dict:
    """`if rank == 0: tidec.install(model)`; and in hybrid sharding one replica of two. The others go on. Then all come, and it works."""
    found, rank = {}, dist.get_rank()
    model = net(blocks=1)
    hybrid = net(blocks=1, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    for name, of, ranks in (("flat", model, (0,)), ("hybrid", hybrid, (0, 1))):
        found[name] = refused(lambda: tidec.install(of, deadline_s=2.0)) if rank in ranks else None
        assert is_stock() and is_untouched(of)
        dist.barrier()
        for _ in range(2):
            tidec.install(of, deadline_s=60.0)
            train(of, Trace(), 1)
            tidec.uninstall(of)
    return found


def sharded_later() -> dict:
    """The root comes under fully_shard after install."""
    torch.manual_seed(7)
    model, mesh = Net(blocks=2), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=MIXED)
    tidec.install(model, deadline_s=60.0)
    before = tidec.report(model)
    fully_shard(model, mesh=mesh, mp_policy=MIXED)
    train(model, Trace(), 1)
    after = tidec.report(model)
    tidec.uninstall(model)
    return {"before": before.stock, "after": after.stock, "groups": [(g.name, g.reason) for g in after.groups], "by_plan": after.by_plan, "text": str(after).splitlines()[-1]}


def broken_on_one_rank() -> dict:
    """pytorch#177472: a rank whose probe fails although its machine looks like the others: nobody runs by plans, in hybrid sharding not even replicas that could."""
    model = net(blocks=1, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    tidec.install(model, deadline_s=60.0)
    tidec.uninstall(model)
    import tidec.run.fsdp as fsdp
    from tidec.errors import Diagnostic, TidecError

    whole = fsdp.open_bundle

    def broken(*args, **kwargs):
        raise TidecError(Diagnostic("E006", "multicast cannot be bound (CUDA error 401)", reason="the fabric manager does not run", help="start nvidia-fabricmanager"))

    if dist.get_rank() == 3:
        fsdp.open_bundle = broken
    tidec.install(model, deadline_s=60.0)
    fsdp.open_bundle = whole
    reasons = [g.reason for g in tidec.report(model).groups]
    assert is_stock() and is_untouched(model)
    train(model, Trace(), 1)
    tidec.uninstall(model)
    return {"reasons": reasons}


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.p0, self.p1 = Linear(6, 6), Linear(6, 6)

    def forward(self, x, is_whole: bool):
        y = self.p0(x)
        return self.p1(y) if is_whole else y


def other_gradients() -> dict:
    """pytorch#158719: rank 0 uses both parameters, the others one."""
    torch.manual_seed(1)
    model = fully_shard(Two(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)), mp_policy=MIXED)
    tidec.install(model, deadline_s=DEADLINE_S)
    model(batch(0, 6), dist.get_rank() == 0).float().sum().backward()
    return {}


def unused_as_zero() -> dict:
    """The same where FSDP2 is told to count what is missing as zero."""
    gradients = []
    for is_held in (False, True):
        torch.manual_seed(1)
        model = fully_shard(Two(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)), mp_policy=MIXED)
        model.set_reduce_scatter_unused_params(True)
        model.set_force_sum_reduction_for_comms(True)
        if is_held:
            tidec.install(model, deadline_s=DEADLINE_S)
        model(batch(0, 6), dist.get_rank() == 0).float().sum().backward()
        gradients.append([p.grad.to_local().clone() for p in model.parameters()])
    found = tidec.report(model).by_plan
    tidec.uninstall(model)
    assert all(torch.equal(a, b) for a, b in zip(*gradients)) and (dist.get_rank() == 3 or any(g.any() for g in gradients[0]))
    return {"by_plan": found}


def until_signalled(number: int, ranks: tuple[int, ...]) -> Callable[[], dict]:
    """Training goes on for ever; in the middle of the third step some ranks get a signal."""
    def case() -> dict:
        model = net(blocks=2)
        tidec.install(model, deadline_s=DEADLINE_S)
        optimizer = train(model, Trace(), 2)
        if dist.get_rank() in ranks:
            model.blocks[1].register_full_backward_pre_hook(lambda *_: os.kill(os.getpid(), number))
        for step in range(2, 1000):
            train(model, Trace(), 1, first=step, optimizer=optimizer)
        return {}

    return case


def leaving(number: int) -> Callable[[], dict]:
    """Rank 2 gets a signal in the middle of a step. The others see their collectives stop, or are interrupted themselves; they give the model back and leave."""
    def case() -> dict:
        model = net(blocks=2)
        tidec.install(model, deadline_s=60.0)
        optimizer = train(model, Trace(), 2)
        if dist.get_rank() == 2:
            model.blocks[1].register_full_backward_pre_hook(lambda *_: os.kill(os.getpid(), number))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        print("trained", flush=True)
        try:
            for step in range(2, 1000):
                train(model, Trace(), 1, first=step, optimizer=optimizer)
        except (tidec.TidecError, KeyboardInterrupt) as problem:
            start = time.monotonic()
            tidec.uninstall(model)
            assert is_stock() and is_untouched(model)
            print(type(problem).__name__, round(time.monotonic() - start, 1), flush=True)
        # Its process group lacks a rank, so nobody may wait for it at the end.
        os._exit(7)

    return case


def parting(deadline_s: float, of_first: int | None = None) -> Callable[[], dict]:
    """Between two steps rank 2 stops. Rank 0 gets a signal, where there is one for it, and the others train on; or else all but rank 2 give the model back."""
    def case() -> dict:
        model, rank = net(blocks=2), dist.get_rank()
        tidec.install(model, deadline_s=deadline_s)
        optimizer = train(model, Trace(), 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if rank == 2:
            os.kill(os.getpid(), signal.SIGSTOP)
        reason = ""
        if of_first is not None:
            try:
                if rank == 0:
                    os.kill(os.getpid(), of_first)
                train(model, Trace(), 1, first=2, optimizer=optimizer)
            except (tidec.TidecError, KeyboardInterrupt) as problem:
                reason = type(problem).__name__
        start, said = time.monotonic(), ""
        print("leaves", flush=True)
        try:
            tidec.uninstall(model)
        except (tidec.TidecError, KeyboardInterrupt) as problem:
            said = str(problem) or type(problem).__name__
        assert is_stock() and is_untouched(model)
        print(json.dumps({"reason": reason, "said": said, "seconds": time.monotonic() - start}), flush=True)
        os._exit(7)

    return case


def kept_apart() -> dict:
    """Rank 2 stops where all ranks open a plan for gradients that were kept in fp32. What the others need of it in earlier collectives is done by then."""
    import tidec.run.team as team

    if dist.get_rank() == 2:
        team.Team.open = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
    model = net(blocks=1)
    tidec.install(model, deadline_s=DEADLINE_S)
    model.set_requires_gradient_sync(False)
    model(batch(0, model.width)).float().square().mean().backward()
    model.set_requires_gradient_sync(True)
    train(model, Trace(), 1, first=1)
    return {}


class Failing(torch.autograd.Function):
    is_on = False

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        if Failing.is_on:
            raise ArithmeticError("of the user")
        return grad


class Fragile(Net):
    def forward(self, x):
        x = self.embed(x)
        for i, block in enumerate(self.blocks):
            x = block(Failing.apply(x) if i == 2 else x)
        return self.head(x)


def failing_hook() -> dict:
    """An exception of the user's in the middle of a backward pass, on all ranks; then FSDP2 is told to forget that step, and training goes on."""
    traces = []
    for is_held in (False, True):
        torch.manual_seed(7)
        trace, model = Trace(), Fragile(blocks=4)
        traces.append(trace)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=MIXED)
        fully_shard(model, mesh=mesh, mp_policy=MIXED)
        if is_held:
            tidec.install(model, deadline_s=DEADLINE_S, poison=True, mode="slot_reuse")
        optimizer = train(model, trace, 2)
        Failing.is_on = True
        try:
            model(batch(2, model.width)).float().square().mean().backward()
        except ArithmeticError as problem:
            trace.seen.append(str(problem))
        Failing.is_on = False
        model.reset_iter_state()
        optimizer.zero_grad()
        train(model, trace, 3, first=3, optimizer=optimizer)
    report = tidec.report(model)
    tidec.uninstall(model)
    return {"is_equal": traces[0].seen == traces[1].seen, "seen": len(traces[0].seen), "stock": report.stock}


def prefetched(model: nn.Module, depth: int) -> None:
    for i, block in enumerate(model.blocks):
        block.set_modules_to_forward_prefetch(list(model.blocks)[i + 1 : i + 1 + depth])


def divided(model: nn.Module, factor: float | None) -> None:
    model.blocks[1].set_gradient_divide_factor(factor)


class Mine(DefaultReduceScatter):
    pass


class Unable(DefaultReduceScatter):
    def allocate(self, *args, **kwargs):
        raise ArithmeticError("of the user")


def told_later() -> dict:
    """Two steps in which blocks are gathered that find no landing, and one with a reduce-scatter of the user's own; nobody requires anything."""
    model = net(blocks=4)
    tidec.install(model, deadline_s=60.0)
    prefetched(model, 2)
    optimizer = train(model, Trace(), 2)
    model.blocks[1].set_custom_reduce_scatter(Mine())
    train(model, Trace(), 1, first=2, optimizer=optimizer)
    counts = {f"{g.name} {c.collective.value}": [why.split()[0] for why, _ in c.stock] for g in tidec.report(model).groups for c in g.collectives if c.stock}
    tidec.uninstall(model)
    return {"stock": counts}


def required(break_it: Callable[[nn.Module], None], mend_it: Callable[[nn.Module], None], mode: str) -> dict:
    """A call that would go stock raises on every rank; then the model is given back, or goes on by its plans, and trains as stock does after an error there.

    NOTE: after one in backward FSDP2 keeps gradients of groups that it did not come to, with tidec and without; one in forward leaves nothing.
    """
    found, traces = {}, []
    for then in ("stock", "given back", "kept"):
        trace, model = Trace(), net(blocks=4)
        traces.append(trace)
        if then != "stock":
            tidec.install(model, mode=mode, require=True, poison=True, deadline_s=DEADLINE_S)
        optimizer = train(model, trace, 2)
        if then != "stock":
            break_it(model)
            code, text = refused(lambda: model(batch(9, model.width)).float().square().mean().backward())
            found[then] = [code, text.splitlines()[0]]
            assert tidec.report(model).stock == {}
            if then == "given back":
                tidec.uninstall(model)
                assert is_stock() and is_untouched(model)
            mend_it(model)
        elif mode == "slot_reuse":
            model.blocks[1].set_custom_reduce_scatter(Unable())
            try:
                model(batch(9, model.width)).float().square().mean().backward()
            except ArithmeticError:
                model.blocks[1].set_custom_reduce_scatter(DefaultReduceScatter())
        model.reset_iter_state()
        optimizer.zero_grad()
        train(model, trace, 3, first=2, optimizer=optimizer)
        if then == "kept":
            assert tidec.report(model).stock == {}
            tidec.uninstall(model)
    assert is_stock() and is_untouched(model)
    return {**found, "is_equal": traces[0].seen == traces[1].seen == traces[2].seen, "seen": len(trace.seen)}


CASES: dict[str, Callable[[], dict]] = {
    "other model": other_model, "other arguments": other_arguments, "absent": absent, "sharded later": sharded_later, "broken on one rank": broken_on_one_rank, "other gradients": other_gradients,
    "unused as zero": unused_as_zero, "stopped": until_signalled(signal.SIGSTOP, (2,)), "killed": until_signalled(signal.SIGKILL, (2,)),
    "left by a killed rank": leaving(signal.SIGKILL), "left by a stopped rank": leaving(signal.SIGSTOP), "interrupted": until_signalled(signal.SIGINT, (0, 1, 2, 3)), "failing hook": failing_hook,
    "interrupted between steps": parting(60.0, signal.SIGINT), "silent at the end": parting(DEADLINE_S), "interrupted at the end": parting(60.0),
    "silent where a plan is opened": kept_apart, "told later": told_later,
    "required in forward": lambda: required(lambda model: prefetched(model, 2), lambda model: prefetched(model, 0), "in_place"),
    "required in backward": lambda: required(lambda model: divided(model, float("inf")), lambda model: divided(model, None), "slot_reuse"),
}


if __name__ == "__main__":
    sys.exit(run_cases(lambda case: CASES[case]()))
