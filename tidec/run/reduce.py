"""What FSDP2's foreach_reduce does beside the reduce-scatter itself: scales, hybrid sharding's all-reduce, hooks, and where gradients end.

N ranks of the shard group, R replicas of hybrid sharding, f the divide factor. FSDP2 divides by N*R: the reduce-scatter by N, the all-reduce by R;
with f, by f; and with sums forced, once at the end. alpha is what a plan multiplies each node's partial sum with.

On a GPU everything is enqueued on the streams that FSDP2 gives, in its order: sums on that of reduce-scatters, after what the current stream holds, and what
follows an all-reduce or a hook on that of all-reduces.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor

from tidec.plan.ir import Plan
from tidec.run.device import Device

Returned = tuple
# out, alpha, accumulate; gives the mark behind which the sums are there.
Run = Callable[["torch.Tensor | int", float, bool], "torch.Event | None"]


@dataclass(frozen=True, slots=True)
class Bound:
    """The arguments of foreach_reduce, whatever version of torch called it.

    is_stream_returned: from 2.13 on it returns a stream too.  packing: from 2.15 on, what packs the gradients; `None` = FSDP2's own.
    """

    group: dist.ProcessGroup | None
    stream: torch.Stream
    comm: object
    orig_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    device: torch.device
    divide_factor: float | None
    all_reduce_group: dist.ProcessGroup | None
    all_reduce_stream: torch.Stream
    is_all_reducing: bool
    partial_output: torch.Tensor | None
    all_reduce_hook: Callable[[torch.Tensor], None] | None
    is_sum_forced: bool
    is_stream_returned: bool
    packing: object = None


@dataclass(frozen=True, slots=True)
class Scale:
    """alpha of the plan, the operation of the all-reduce, and what the result is divided by at the end."""

    alpha: float
    all_reduce_op: dist.ReduceOp.RedOpType
    divide_by: float


def scale_of(bound: Bound) -> Scale | None:
    """How a reduce-scatter scales; `None` where the divide factor is no finite number above zero.

    Source: torch.distributed.fsdp _get_gradient_divide_factors, for sums in fp32.
    """
    ranks = bound.group.size()
    replicas = bound.all_reduce_group.size() if bound.all_reduce_group is not None else 1
    factor = bound.divide_factor
    if factor is not None and not 0 < factor < float("inf"):
        return None
    if bound.is_sum_forced:
        return Scale(1.0, dist.ReduceOp.SUM, float(ranks * replicas) if factor is None else float(factor))
    if factor is None:
        return Scale(1.0 / ranks, dist.ReduceOp.AVG, 1.0)
    return Scale(1.0 / factor, dist.ReduceOp.SUM, 1.0)


def reduced(
    plan: Plan, run: Run, bound: Bound, params: Sequence[FSDPParam], indices: Sequence[int], *, device: Device, kept: Sequence[torch.Tensor] = (),
) -> Returned:
    """Reduce and deliver, as foreach_reduce does; returns what it returns.

    run: runs the plan.  params: those that have a gradient.  indices: where they stand in the plan.
    kept: gradients that are read where they are, so that FSDP2 keeps them until they have been.
    """
    scale = scale_of(bound)
    rows = plan.layout.params
    # With nothing to keep, what FSDP2 waits for before it goes on is over by now.
    begun = device.mark()
    device.wait(begun, bound.stream)
    is_reduced_on = bound.all_reduce_group is not None or bound.all_reduce_hook is not None
    stream, all_reduced = bound.all_reduce_stream if is_reduced_on else bound.stream, None
    with device.on(bound.stream):
        before = _accumulated(plan, bound, params, indices)
        if before is not None:
            summed = run(before, scale.alpha, True)
            has_run = [_run_hooks(p) for p in params]
            return _returned(bound, summed if kept else begun, device.mark() if any(has_run) else summed, kept)
        out = torch.empty(plan.layout.packed_elems, dtype=torch.float32, device=bound.device)
        summed = run(out, scale.alpha, False)
        starts = [rows[i].packed_start for i in indices]
        if len(indices) < sum(r.is_trainable for r in rows):
            # As stock packs it, without those that have no gradient: a partial sum may go on to a stock call or come from one, and replicas add up rows of one size.
            out = torch.cat([out[start : start + rows[i].packed_elems] for start, i in zip(starts, indices)])
            starts = list(itertools.accumulate((rows[i].packed_elems for i in indices), initial=0))[:-1]
        read = summed if kept else begun
        if bound.all_reduce_group is not None:
            if not bound.is_all_reducing:
                if bound.partial_output is not None:
                    bound.partial_output.add_(out)
                return _returned(bound, read, device.mark(), kept, partial=bound.partial_output if bound.partial_output is not None else out)
            if bound.partial_output is not None:
                out += bound.partial_output
        if is_reduced_on:
            device.wait(device.mark(), stream)
    with device.on(stream):
        if bound.all_reduce_group is not None:
            dist.all_reduce(out, group=bound.all_reduce_group, op=scale.all_reduce_op)
            all_reduced = device.mark()
        if bound.all_reduce_hook is not None:
            bound.all_reduce_hook(out)
        if scale.divide_by != 1:
            out.div_(scale.divide_by)
        row = out if bound.orig_dtype in (None, torch.float32) else out.to(bound.orig_dtype)
        for p, start in zip(params, starts):
            grad = torch.as_strided(row, p.sharded_size, p.contiguous_sharded_stride, start)
            if p.sharded_param.grad is not None:
                assert isinstance(p.sharded_param.grad, DTensor), type(p.sharded_param.grad)
                p.sharded_param.grad._local_tensor += grad
            else:
                p.sharded_param.grad = p.to_sharded_dtensor(grad)
            _run_hooks(p)
        delivered = device.mark()
    if is_reduced_on and row is not out:
        # It was made on the stream of reduce-scatters, and is read on another.
        kept, read = (*kept, out), delivered
    on_all = None if bound.all_reduce_group is None else (out, all_reduced)
    return _returned(bound, read, delivered, kept, stream=stream, on_all=on_all)


def _accumulated(plan: Plan, bound: Bound, params: Sequence[FSDPParam], indices: Sequence[int]) -> int | None:
    """The address of the packed row that already holds the gradients of all parameters, so that the plan itself can add to it; `None` = there is none."""
    if bound.all_reduce_group is not None or bound.all_reduce_hook is not None or bound.is_sum_forced or bound.orig_dtype not in (None, torch.float32):
        return None
    if len(params) != sum(r.is_trainable for r in plan.layout.params):
        return None
    start = None
    for p, i in zip(params, indices):
        grad = p.sharded_param.grad
        if grad is None or not isinstance(grad, DTensor):
            return None
        own = grad._local_tensor
        rows = plan.layout.params[i]
        if own.dtype != torch.float32 or own.size() != p.sharded_size or own.stride() != tuple(p.contiguous_sharded_stride) or own.storage_offset() != rows.packed_start:
            return None
        storage = own.untyped_storage()
        if storage.size() != 4 * plan.layout.packed_elems or start not in (None, storage.data_ptr()):
            return None
        start = storage.data_ptr()
    return start


def _run_hooks(p: FSDPParam) -> bool:
    """Returns whether there was any."""
    hooks = getattr(p.sharded_param, "_post_accumulate_grad_hooks", None) or {}
    for hook in hooks.values():
        hook(p.sharded_param)
    return bool(hooks)


def _returned(
    bound: Bound, read: torch.Event | None, delivered: torch.Event | None, kept: Sequence[torch.Tensor], *, stream: torch.Stream | None = None,
    on_all: tuple[torch.Tensor, torch.Event | None] | None = None, partial: torch.Tensor | None = None,
) -> Returned:
    """What FSDP2 keeps, and for how long. read: when gradients have been read.  delivered: when new ones are there.  on_all: what was all-reduced, and when."""
    stream = (bound.stream if stream is None else stream,) if bound.is_stream_returned else ()
    return (list(kept), read, *stream, delivered, *((None, None) if on_all is None else on_all), partial)
