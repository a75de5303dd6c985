"""How gradients are scaled: by what FSDP2 divides them, in the plan, in the all-reduce of replicas, and at the end."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch.distributed as dist

from tidec.run.reduce import Bound, scale_of

AVG, SUM = dist.ReduceOp.AVG, dist.ReduceOp.SUM


def bound(ranks: int, factor: float | None = None, *, replicas: int = 1, is_forced: bool = False) -> Bound:
    groups = [SimpleNamespace(size=lambda size=size: size) for size in (ranks, replicas)]
    return Bound(groups[0], None, None, None, None, None, factor, groups[1] if replicas > 1 else None, None, True, None, None, is_forced, True)


@pytest.mark.parametrize(("given", "want"), [
    # A mean over the ranks; over replicas the all-reduce takes the mean of means.
    (bound(4), (0.25, AVG, 1.0)), (bound(1), (1.0, AVG, 1.0)), (bound(4, replicas=2), (0.25, AVG, 1.0)),
    # A factor is of all ranks: 1 is a plain sum (pytorch#162338).
    (bound(4, 1.0), (1.0, SUM, 1.0)), (bound(4, 2.5), (0.4, SUM, 1.0)), (bound(4, 8, replicas=2), (0.125, SUM, 1.0)),
    # Sums that are forced are divided once, at the end.
    (bound(4, is_forced=True), (1.0, SUM, 4.0)), (bound(4, replicas=2, is_forced=True), (1.0, SUM, 8.0)), (bound(4, 2.5, is_forced=True), (1.0, SUM, 2.5)),
], ids=lambda x: "" if isinstance(x, Bound) else str(x))
def test_scales_are_those_of_fsdp2(given, want):
    found = scale_of(given)
    assert (found.alpha, found.all_reduce_op, found.divide_by) == want
    # A gradient of 1 on every rank of every replica ends as FSDP2 has it: what it sums, over what it divides by.
    ranks, replicas = given.group.size(), given.all_reduce_group.size() if given.all_reduce_group else 1
    total = ranks * found.alpha * (replicas if found.all_reduce_op == SUM else 1) / found.divide_by
    assert total == ranks * replicas / (given.divide_factor or ranks * replicas)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("inf"), float("nan")])
def test_what_is_no_factor_scales_nothing(factor):
    assert scale_of(bound(4, factor)) is None
