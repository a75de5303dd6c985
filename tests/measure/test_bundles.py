"""What the measurements on two GPUs ask for."""
from __future__ import annotations

import math

import pytest

from tidec.inputs.asked import asked_of
from tidec.inputs.signature import Dtype


def test_the_pair_has_groups_of_both_kinds_and_a_real_block(program):
    asked = program("bundles").pair()
    assert [g.name for g in asked.groups] == ["equal30-32MiB", "equal30-8MiB", "equal30-128MiB", "unequal30-8MiB", "unequal30-32MiB", "block"]
    assert sum(math.prod(p.shape) for p in asked.groups[-1].params) == 218_112_000


def test_the_sweep_is_every_count_by_every_size(program):
    of = program("bundles")
    assert {(len(g.params), g.name) for g in of.sweep().groups} == {(p, f"equal{p}-{size}") for p in (1, 9, 16, 30, 256) for size in ("1MiB", "8MiB", "32MiB", "128MiB", "256MiB")}


@pytest.mark.slow
def test_a_models_groups_are_what_install_asks_for(program):
    """Sixteen blocks of nine parameters and a root of three, which alone has one landing, in the type that they are gathered in, so that no plan casts, and in fp32 where gradients
    are kept; the model takes no memory."""
    pytest.importorskip("torch")
    import torch.distributed as dist

    try:
        groups = asked_of(program("bundles").trained("1b")())
    finally:
        dist.destroy_process_group()
    asked, kept = groups[:17], groups[17:]
    assert sorted((len(g.params), g.landings) for g in asked) == [(3, 1), *[(9, 2)] * 16] and sorted(len(g.params) for g in kept) == [3, *[9] * 16]
    assert all(p.dtype is Dtype.BF16 for g in asked for p in g.params) and all(p.dtype is Dtype.FP32 for g in kept for p in g.params)
