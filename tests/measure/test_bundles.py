"""What the measurements on two GPUs ask for."""
from __future__ import annotations

import math

import pytest

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
    """Sixteen blocks of nine parameters and a root of three, in the type that they are gathered in, so that no plan casts; the model takes no memory."""
    pytest.importorskip("torch")
    import torch.distributed as dist

    try:
        groups = program("bundles").trained("1b")().groups
    finally:
        dist.destroy_process_group()
    assert sorted(len(g.params) for g in groups) == [3, *[9] * 16] and all(p.dtype is Dtype.BF16 for g in groups for p in g.params)
