"""What the bits of a plan are held against: a node that does its work wrong is seen, and where."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.ir import Plan
from tidec.plan.lower import lower

torch = pytest.importorskip("torch")

from tidec.run.beside import Here, beside  # noqa: E402


def plan_of(collective: Collective) -> Plan:
    topology = parse_topology("1x1")
    params = (Parameter("a", (3, 2), Dtype.BF16), Parameter("frozen", (5,), Dtype.BF16, requires_grad=False), Parameter("b", (4,), Dtype.BF16))
    return lower(Ask(topology, Group("g", 1, params), Lowering.P2P, parse_knobs((), topology.lanes, nodes=1)), collective)


class Alone:
    """The only rank, whose node carries a plan out by itself. wrong_at: which value of a landing or row it gets wrong, -1 none."""

    def __init__(self, plan: Plan, wrong_at: int):
        self.plan, self.wrong_at = plan, wrong_at
        self.landing = torch.zeros(plan.layout.landing_bytes // 2, dtype=torch.bfloat16)
        self.sources = {}

    def arena(self):
        return self.landing.data_ptr(), self.landing.nbytes

    def gather(self, call, shard, stream=0):
        from tidec.run.arena import tensor_at

        self.landing.copy_(tensor_at(shard, self.landing.numel(), torch.bfloat16))
        if self.wrong_at >= 0:
            self.landing[self.wrong_at] += 64

    def acquire(self, call, stream=0):
        return self.landing.data_ptr()

    def release(self, call, stream=0):
        pass

    def reduce(self, call, gradients, out, alpha, accumulate, stream=0):
        from tidec.run.arena import tensor_at

        assert alpha == 1.0 and not accumulate and not gradients[1], "a frozen parameter has no gradient"
        row = tensor_at(out, self.plan.layout.packed_elems, torch.float32)
        for at, p in zip(gradients, self.plan.layout.params):
            if at:
                row[p.packed_start : p.packed_start + p.packed_elems] = tensor_at(at, p.real_elems, torch.bfloat16).float()
        if self.wrong_at >= 0:
            row[self.wrong_at] += 1


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        yield Here(0, torch.device("cpu"), dist.group.WORLD, 0, 1000, 7)
    finally:
        dist.destroy_process_group()


# A value by hand: the landing has a (6 values), frozen (5), b (4); the row a (6), b (4).
@pytest.mark.parametrize(("collective", "wrong_at", "place"), [(Collective.ALL_GATHER, 8, ("frozen", 2, 0)), (Collective.REDUCE_SCATTER, 5, ("a", 2, 1))])
def test_one_wrong_value_is_seen_where_it_is(here, collective, wrong_at, place):
    plan = plan_of(collective)
    both = beside(plan, Alone(plan, -1), here)
    assert both.check() is None and both.check() is None and both.checked == "stock"
    found = beside(plan, Alone(plan, wrong_at), here).check()
    assert found is not None and (found.rank, found.parameter, found.row, found.column) == (0, *place) and found.got != found.wanted


def test_both_sides_can_be_called_again_and_again(here):
    plan = plan_of(Collective.ALL_GATHER)
    both = beside(plan, Alone(plan, -1), here)
    for _ in range(3):
        both.stock()
        both.plan()
    assert both.check() is None and both.size_bytes == 2 * (6 + 5 + 4) and both.dtype is Dtype.BF16
