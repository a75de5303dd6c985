"""The cases that every target is held against: groups, topologies and knobs.

Real models are scaled down, so that a case takes a tenth of a second: GPT-2's widths by 8 (vocabulary 50257 to 997, a prime too), Llama-3.1-8B's by 64.
"""
from __future__ import annotations

from dataclasses import dataclass

from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.ir import Plan
from tidec.plan.lower import lower

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
TOPOLOGIES = ("1x1", "1x4", "2x1", "2x2", "3x1", "3x2", "5x1", "2x3", "4x2")

_d = 96
GPT2_BLOCK = ((_d,), (_d,), (_d, 3 * _d), (3 * _d,), (_d, _d), (_d,), (_d,), (_d,), (_d, 4 * _d), (4 * _d,), (4 * _d, _d), (_d,))
GPT2_EMBED = ((997, _d), (128, _d), (_d,), (_d,))
LLAMA_BLOCK = ((64, 64), (16, 64), (16, 64), (64, 64), (224, 64), (224, 64), (64, 224), (64,), (64,))
# Ranks that own no row, one dimension, odd widths, a shard that no alignment fits.
AWKWARD = ((2, 40), (7, 3), (33,), (0, 4), (50, 6), (1, 2, 2), (4,), (5, 1), (2, 16, 8))
MANY = tuple((1 + i % 5, 1 + i % 3) for i in range(256))
SHAPES = {"gpt2 block": GPT2_BLOCK, "gpt2 embed": GPT2_EMBED, "llama block": LLAMA_BLOCK, "awkward": AWKWARD, "256 parameters": MANY}
# Public reports: two rows for eight ranks, a head of 32001 rows, experts that leave ranks empty, one value, norms that shift what follows off 16 bytes.
REPORTED = {"two rows": ((2, 4096),), "32001 rows": ((32001, 64),), "experts": ((2, 16, 8),), "one value": ((1,),), "norms": ((128,), (128,), (256, 32), (3, 5), (256, 32))}
REPORTS = (("1x8", "two rows"), ("2x4", "32001 rows"), ("1x4", "experts"), ("1x1", "one value"), ("2x4", "norms"), ("5x2", "two rows"))

# What a reduce-scatter is run with: knobs, where the topology has room for them.
KNOBS = {
    "full": (), "partial outbox": ("k=1", "n_out=1", "n_part=2"), "one slot": ("n_stg=1", "n_part=3", "W=1"), "chunks": ("chunk_bytes=256",),
    "stripes": ("stripes=2", "chunks=4", "n_stg=3"), "chunks of a partial outbox": ("k=1", "n_out=2", "stripes=3", "chunks=3", "n_part=2"),
}
CASTS = {"no cast": (Dtype.BF16, None), "to bf16": (Dtype.FP32, Dtype.BF16), "to fp16": (Dtype.FP32, Dtype.FP16), "wider": (Dtype.BF16, Dtype.FP32)}


@dataclass(frozen=True)
class Case:
    """One plan. name: what is run, for the message."""

    name: str
    plan: Plan


def gather(topo: str, shapes: str, cast: str = "no cast", lowering: Lowering = Lowering.P2P, landings: int = 2) -> Case:
    stored, gathered = CASTS[cast]
    return _case(topo, GATHER, shapes, stored, gathered, (), lowering, f"{cast}, {landings} landings", landings)


def reduce(topo: str, shapes: str, knobs: str = "full", dtype: Dtype = Dtype.BF16, lowering: Lowering = Lowering.P2P) -> Case:
    return _case(topo, REDUCE, shapes, dtype, None, KNOBS[knobs], lowering, f"{knobs}, {dtype.value}")


def _case(topo: str, collective: Collective, shapes: str, dtype: Dtype, gathered: Dtype | None, knobs: tuple[str, ...], lowering: Lowering, words: str, landings: int = 2) -> Case:
    topology = parse_topology(topo)
    group = Group("g", 1, tuple(Parameter(f"p{i}", shape, dtype) for i, shape in enumerate({**SHAPES, **REPORTED}[shapes])), param_dtype=gathered, landings=landings)
    # A wave is no wider than a node has lanes.
    asked = Ask(topology, group, lowering, parse_knobs(knobs, topology.lanes, nodes=topology.nodes))
    return Case(f"{topo} {collective.value} of {shapes}, {words}, {lowering.value}", lower(asked, collective))


def few() -> list[Case]:
    """Every topology, every set of knobs and every cast once; in all collectives and lowerings."""
    return [
        *(gather(topo, "awkward", cast) for topo, cast in zip(TOPOLOGIES, ("no cast", "to bf16", "to fp16", "wider") * 3)),
        *(reduce(topo, "awkward", knobs) for topo, knobs in zip(TOPOLOGIES, (*KNOBS, *KNOBS))),
        gather("3x2", "awkward", lowering=Lowering.NVLS), reduce("3x2", "awkward", lowering=Lowering.NVLS),
        *(case(topo, shapes) for topo, shapes in REPORTS if shapes != "32001 rows" for case in (gather, reduce)), reduce("2x2", "llama block", dtype=Dtype.FP32), reduce("2x3", "gpt2 block", "stripes", dtype=Dtype.FP16), gather("2x2", "256 parameters"),
        gather("1x4", "awkward", landings=1), gather("3x2", "awkward", "to bf16", landings=1),
    ]


def many() -> list[Case]:
    """Everything at every topology."""
    return [
        *(gather(topo, shapes, cast) for topo in TOPOLOGIES for shapes in SHAPES for cast in ("no cast", "to bf16")),
        *(reduce(topo, shapes, knobs) for topo in TOPOLOGIES for shapes in SHAPES for knobs in ("full", "partial outbox", "stripes")),
        *(reduce(topo, "awkward", knobs, dtype) for topo in TOPOLOGIES for knobs in KNOBS for dtype in (Dtype.FP16, Dtype.FP32)),
        *(case(topo, shapes) for topo, shapes in REPORTS for case in (gather, reduce)),
        *(case(topo, "awkward", lowering=Lowering.NVLS) for topo in TOPOLOGIES for case in (gather, reduce)),
        *(gather(topo, "awkward", landings=1) for topo in TOPOLOGIES),
    ]
