"""One rank of a job with the less common uses of FSDP2: hybrid sharding, wrappers, policies, optimizers, and what changes after install; stock and by plans.

    fsdp_wide.py STORE CASE[/MODE]...      prints on rank 0 one JSON line a case
"""
from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from fsdp_model import MIXED, Case, Linear, Net, Rounded, Trace, batch, compare, net, run_cases, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, share_comm_ctx
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint


def hybrid() -> object:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def hybrid_training(trace: Trace, install: Callable) -> None:
    model = net(mesh=hybrid(), blocks=2)
    install(model)
    train(model, trace, 4)


def hybrid_accumulating(trace: Trace, install: Callable) -> None:
    """Partial sums over the shard group only, but for the last of three micro-batches; in every other step the first two are not reduced at all."""
    model = net(mesh=hybrid(), blocks=2, is_unused=True)
    install(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(4):
        for micro in range(3):
            model.set_requires_gradient_sync(step % 2 == 0 or micro > 0)
            model.set_requires_all_reduce(micro == 2)     # after the other, which sets both
            model(batch(10 * step + micro, model.width)).float().square().mean().backward()
        for p in model.parameters():
            if p.grad is not None:
                trace.see_sum(p.grad)
        optimizer.step()
        optimizer.zero_grad()
    trace.see_model(model)


class Sometimes(nn.Module):
    """A layer of which one part is used only when it is told so."""

    def __init__(self, width: int = 6):
        super().__init__()
        self.first, self.second, self.width, self.is_whole = Linear(width, width), Linear(width, width), width, True

    def forward(self, x):
        y = self.first(x)
        return self.second(y) if self.is_whole else y


def hybrid_sometimes(trace: Trace, install: Callable) -> None:
    """A parameter that has a gradient in the last micro-batch only."""
    torch.manual_seed(3)
    model = fully_shard(Sometimes(), mesh=hybrid(), mp_policy=MIXED)
    install(model)
    for step in range(2):
        for micro in range(3):
            model.is_whole = micro == 2 or step == 1
            model.set_requires_all_reduce(micro == 2 or step == 0)
            model(batch(10 * step + micro, 6)).float().square().mean().backward()
        for p in model.parameters():
            trace.see_sum(p.grad)
            p.grad = None


def resharded_to_two(trace: Trace, install: Callable) -> None:
    torch.manual_seed(7)
    mesh = init_device_mesh("cpu", (4,))
    model = Net(width=16, hidden=32, blocks=2)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=MIXED, reshard_after_forward=2)
    fully_shard(model, mesh=mesh, mp_policy=MIXED)
    install(model)
    train(model, trace, 4)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.width = nn.Linear(8, 12), nn.Linear(12, 8), 8

    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(x)))


def tensor_parallel(trace: Trace, install: Callable) -> None:
    """Two ranks share every sum, so its order does not matter. One block of two is tensor parallel."""
    torch.manual_seed(7)
    meshes = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(Pair(), Pair())
    model.width = 8
    parallelize_module(model[0], meshes["tp"], {"inner": ColwiseParallel(), "outer": RowwiseParallel()})
    for block in model:
        fully_shard(block, mesh=meshes["dp"], mp_policy=MIXED)
    fully_shard(model, mesh=meshes["dp"], mp_policy=MIXED)
    install(model)
    train(model, trace, 4)


def frozen_block(trace: Trace, install: Callable) -> None:
    torch.manual_seed(7)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Net(blocks=3)
    model.blocks[1].requires_grad_(False)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=MIXED)
    fully_shard(model, mesh=mesh, mp_policy=MIXED)
    install(model)
    train(model, trace, 4)


def half(trace: Trace, install: Callable) -> None:
    model = net(policy=MixedPrecisionPolicy(param_dtype=torch.float16), blocks=2)
    install(model)
    train(model, trace, 3)


class Gather(DefaultAllGather):
    pass


class Scatter(DefaultReduceScatter):
    pass


def own_comms(trace: Trace, install: Callable) -> None:
    """The user's objects, before install in the first block, after it in the others."""
    model = net(blocks=3)
    model.blocks[0].set_custom_all_gather(Gather())
    install(model)
    model.blocks[1].set_custom_all_gather(Gather())
    model.blocks[2].set_custom_reduce_scatter(Scatter())
    train(model, trace, 3)


def no_rows(trace: Trace, install: Callable) -> None:
    """A parameter without rows."""
    torch.manual_seed(7)
    model = Net(blocks=2)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model.blocks[0].none = nn.Parameter(torch.empty(0, 5))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=MIXED)
    fully_shard(model, mesh=mesh, mp_policy=MIXED)
    install(model)
    train(model, trace, 3)


def refrozen(trace: Trace, install: Callable) -> None:
    """Parameters that are frozen, and thawed, after install."""
    model = net(blocks=2, is_frozen=True)
    install(model)
    optimizer = train(model, trace, 2)
    model.blocks[0].up.weight.requires_grad_(False)
    train(model, trace, 2, first=2, optimizer=optimizer)
    model.blocks[0].up.weight.requires_grad_(True)
    train(model, trace, 2, first=4, optimizer=optimizer)
    model.blocks[1].frozen.requires_grad_(True)
    down = model.blocks[1].down
    down.forward = lambda x: type(down).forward(down, x) + Rounded.apply(model.blocks[1].frozen).sum()
    train(model, trace, 2, first=6, optimizer=optimizer)


def compiled(backend: str) -> Case:
    def case(trace: Trace, install: Callable) -> None:
        torch.manual_seed(7)
        torch._dynamo.reset()
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = nn.Sequential(Pair(), Pair())
        model.width = 8
        for block in model:
            block.compile(backend=backend)
            fully_shard(block, mesh=mesh, mp_policy=MIXED)
        fully_shard(model, mesh=mesh, mp_policy=MIXED)
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: trace.see_sum(p.grad))
        install(model)
        with torch.no_grad():
            trace.see(model(batch(0, 8)))
        for step in range(3):
            model(batch(step, 8)).float().square().mean().backward()

    return case


class Checkpointed(Net):
    def __init__(self, *, is_reentrant: bool, **options):
        super().__init__(**options)
        self.is_reentrant = is_reentrant

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.is_reentrant)
        return self.head(x)


def checkpointing(is_reentrant: bool) -> Case:
    """Recomputed by the model itself, with explicit prefetch in forward (NVIDIA-NeMo/Automodel#3373)."""
    def case(trace: Trace, install: Callable) -> None:
        torch.manual_seed(7)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = Checkpointed(is_reentrant=is_reentrant)
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=MIXED)
        fully_shard(model, mesh=mesh, mp_policy=MIXED)
        for block, after in zip(model.blocks, list(model.blocks)[1:]):
            block.set_modules_to_forward_prefetch([after])
        install(model)
        train(model, trace, 4)

    return case


def summed_by_the_plan(trace: Trace, install: Callable) -> None:
    """Every micro-batch is reduced: from the second one on the plan itself adds to the gradients."""
    model = net(blocks=2)
    install(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        for micro in range(3):
            model(batch(10 * step + micro, model.width)).float().square().mean().backward()
        for p in model.parameters():
            trace.see_sum(p.grad)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step == 0)
    trace.see_model(model)


def optimizing(is_before: bool, **options) -> Case:
    def case(trace: Trace, install: Callable) -> None:
        model = net(blocks=2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options) if is_before else None
        install(model)
        train(model, trace, 3, optimizer=optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2, **options))

    return case


def from_meta(trace: Trace, install: Callable) -> None:
    """Built and sharded on the meta device, installed, then materialised (pytorch#164554: ranks without rows)."""
    with torch.device("meta"):
        model = Net(blocks=2)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=MIXED)
    fully_shard(model, mesh=mesh, mp_policy=MIXED)
    install(model)
    model.to_empty(device="cpu")
    for i, p in enumerate(model.parameters()):
        with torch.no_grad():
            p.to_local().copy_(torch.arange(p.to_local().numel()).reshape(p.to_local().shape).add(dist.get_rank() + i).remainder(7).sub(3).div(16))
    train(model, trace, 3)


def averaging(trace: Trace, install: Callable) -> None:
    """A moving average of the weights by deep copies of the state (pytorch#82070)."""
    model = net(blocks=2)
    install(model)
    optimizer = train(model, trace, 1)
    average = copy.deepcopy(model.state_dict())
    for step in range(1, 4):
        train(model, trace, 1, first=step, optimizer=optimizer)
        for name, value in model.state_dict().items():
            average[name].to_local().lerp_(value.to_local(), 0.25)
            assert average[name].to_local().storage_offset() == 0
    for value in average.values():
        trace.see(value)
    model.load_state_dict(average)
    train(model, trace, 1, first=4, optimizer=optimizer)


def forced_sums(trace: Trace, install: Callable) -> None:
    """Both divide the exact sum by the number of ranks, so that three ranks have the same bits too."""
    model = net(blocks=2, is_frozen=True, is_unused=True)
    for module in (*model.blocks, model):       # FSDP2 sets it on a module alone
        module.set_force_sum_reduction_for_comms(True)
    install(model)
    train(model, trace, 4)


def pipelined(is_shared: bool) -> Case:
    """Two stages in one process, as torch.distributed.pipelining drives them: nothing is resharded or reduced in backward until the last of two micro-batches.

    is_shared: the stages share FSDP2's streams and what it keeps of the order of collectives.
    """
    def case(trace: Trace, install: Callable) -> None:
        stages = [net(blocks=2), net(blocks=2)]
        if is_shared:
            share_comm_ctx(stages)
        assert (stages[0]._get_fsdp_state()._comm_ctx is stages[1]._get_fsdp_state()._comm_ctx) == is_shared
        for stage in stages:
            install(stage)
        between = torch.randn(stages[1].width, 11, generator=torch.Generator().manual_seed(3)) / 4
        optimizers = [torch.optim.AdamW(stage.parameters(), lr=1e-2) for stage in stages]
        for step in range(3):
            for stage in stages:
                ending(stage, False)
            for micro in range(2):
                sent = stages[0](batch(10 * step + micro, stages[0].width))
                got = sent.detach().requires_grad_()
                loss = stages[1](F.linear(got.float(), between)).float().square().mean()
                trace.see(loss)
                loss.backward()
                sent.backward(Rounded.backward(None, got.grad))
            for stage in reversed(stages):
                ending(stage, True)
                state = stage._get_fsdp_state()
                for below in state._state_ctx.all_states:
                    for group in below._fsdp_param_groups:
                        group.post_backward()
                state._root_post_backward_final_callback()
            for stage, optimizer in zip(stages, optimizers):
                for p in stage.parameters():
                    trace.see_sum(p.grad)
                optimizer.step()
                optimizer.zero_grad()

    return case


def ending(stage: nn.Module, is_last: bool) -> None:
    """Whether the backward pass that comes is the last one of a step."""
    stage.set_is_last_backward(is_last)
    stage.set_reshard_after_backward(is_last)
    stage.set_requires_gradient_sync(is_last)


CASES: dict[str, Case] = {
    "hybrid": hybrid_training, "hybrid accumulating": hybrid_accumulating, "hybrid sometimes": hybrid_sometimes, "resharded to two": resharded_to_two,
    "tensor parallel": tensor_parallel, "frozen block": frozen_block, "half": half, "own comms": own_comms, "no rows": no_rows, "refrozen": refrozen,
    "compiled": compiled("aot_eager"), "compiled by inductor": compiled("inductor"), "reentrant": checkpointing(True), "not reentrant": checkpointing(False),
    "summed by the plan": summed_by_the_plan, "optimizer before": optimizing(True, foreach=True), "optimizer after": optimizing(False, foreach=True),
    "fused before": optimizing(True, fused=True), "from meta": from_meta, "averaging": averaging, "forced sums": forced_sums,
    "pipelined": pipelined(False), "pipelined, sharing": pipelined(True),
}


def run(case: str) -> dict:
    name, _, mode = case.partition("/")
    return compare(CASES[name], mode or "in_place")


if __name__ == "__main__":
    sys.exit(run_cases(run))
