"""What FSDP2's foreach_reduce does beside the reduce-scatter itself: scales, hybrid sharding's all-reduce, hooks, and where gradients end.

N ranks of the shard group, R replicas of hybrid sharding, f the divide factor. FSDP2 divides by N*R: the reduce-scatter by N, the all-reduce by R;
with f, by f; and with sums forced, once at the end. alpha is what a plan multiplies each node's partial sum with.
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

Returned = tuple
# out, alpha, accumulate.
Run = Callable[["torch.Tensor | int", float, bool], None]


@dataclass(frozen=True, slots=True)
class Bound:
    """The arguments of foreach_reduce, whatever version of torch called it. is_stream_returned: from 2.13 on it returns a stream too."""

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


def reduced(plan: Plan, run: Run, bound: Bound, params: Sequence[FSDPParam], indices: Sequence[int]) -> Returned:
    """Reduce and deliver, as foreach_reduce does; returns what it returns.

    run: runs the plan.  params: those that have a gradient.  indices: where they stand in the plan.
    """
    scale = scale_of(bound)
    rows = plan.layout.params
    before = _accumulated(plan, bound, params, indices)
    if before is not None:
        run(before, scale.alpha, True)
        for p in params:
            _run_hooks(p)
        return _returned(bound, None)
    out = torch.empty(plan.layout.packed_elems, dtype=torch.float32, device=bound.device)
    run(out, scale.alpha, False)
    starts = [rows[i].packed_start for i in indices]
    if len(indices) < sum(r.is_trainable for r in rows):
        # As stock packs it, without those that have no gradient: a partial sum may go on to a stock call or come from one, and replicas add up rows of one size.
        out = torch.cat([out[start : start + rows[i].packed_elems] for start, i in zip(starts, indices)])
        starts = list(itertools.accumulate((rows[i].packed_elems for i in indices), initial=0))[:-1]
    reduced_on_all = None
    if bound.all_reduce_group is not None:
        if not bound.is_all_reducing:
            if bound.partial_output is not None:
                bound.partial_output.add_(out)
            return _returned(bound, None, bound.partial_output if bound.partial_output is not None else out)
        if bound.partial_output is not None:
            out += bound.partial_output
        dist.all_reduce(out, group=bound.all_reduce_group, op=scale.all_reduce_op)
        reduced_on_all = out
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
    return _returned(bound, reduced_on_all)


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


def _run_hooks(p: FSDPParam) -> None:
    for hook in (getattr(p.sharded_param, "_post_accumulate_grad_hooks", None) or {}).values():
        hook(p.sharded_param)


def _returned(bound: Bound, all_reduced: torch.Tensor | None, partial: torch.Tensor | None = None) -> Returned:
    """What FSDP2 keeps: nothing but events, since gradients have been read by now."""
    event = bound.stream.record_event()
    nothing = torch.empty(0, device=bound.device)
    stream = (bound.stream,) if bound.is_stream_returned else ()
    return (nothing, event, *stream, event, all_reduced, event if all_reduced is not None else None, partial)
