"""Shards lie packed where an all-gather takes them: one in the arena's own place for it, others apart."""
from __future__ import annotations

import torch

from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import Knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.arena import RESIDENT_SHARD
from tidec.plan.ir import Plan
from tidec.plan.lower import lower
from tidec.run.arena import Shard


def plan_of(stored: Dtype) -> Plan:
    params = (Parameter("a", (5, 3), stored), Parameter("b", (2,), stored))
    return lower(Ask(parse_topology("1x2"), Group("g", 1, params, param_dtype=Dtype.BF16), Lowering.P2P, Knobs(W=2, k=1)), Collective.ALL_GATHER)


# Three rows of three values, and one value.
PARTS = [torch.arange(9).float(), torch.tensor([9.0])]


def test_a_shard_in_the_arena_takes_its_own_place_and_no_byte_more():
    plan = plan_of(Dtype.BF16)
    (place,) = (r for r in plan.arena.regions if r.name == RESIDENT_SHARD)
    arena = torch.full((plan.arena.bytes,), 0xFF, dtype=torch.uint8)
    shard = Shard(plan, arena=arena.data_ptr())
    assert shard.address == arena.data_ptr() + place.offset and place.bytes == 20
    shard.pack(PARTS)
    assert torch.equal(arena[place.offset : place.offset + 20].view(torch.bfloat16), torch.arange(10).bfloat16())
    assert (arena[: place.offset] == 0xFF).all() and (arena[place.offset + 20 :] == 0xFF).all()


def test_a_plan_that_casts_has_no_place_for_it():
    """Its shard is of another type, and lies apart."""
    plan = plan_of(Dtype.FP32)
    arena = torch.full((plan.arena.bytes,), 0xFF, dtype=torch.uint8)
    shard = Shard(plan, arena=arena.data_ptr())
    assert not arena.data_ptr() <= shard.address < arena.data_ptr() + plan.arena.bytes
    shard.pack(PARTS)
    assert (arena == 0xFF).all() and torch.equal(shard._memory.view(torch.float32), torch.arange(10).float())
