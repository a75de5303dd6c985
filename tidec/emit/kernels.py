"""Which kernels the plans of a bundle need: one instantiation of a header of runtime/cuda for each type, lane count and lowering.

A kernel knows no plan: two bundles whose plans sum the same type over as many lanes have the same text here.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidec.inputs.ask import Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.signature import Dtype
from tidec.plan.ir import Plan

# What a type is called in runtime/cuda/element.cuh.
_TYPES = {Dtype.BF16: "Bf16", Dtype.FP16: "Fp16", Dtype.FP32: "float", Dtype.FP64: "double"}


@dataclass(frozen=True, slots=True)
class Instance:
    """One row of a table of kernels.hpp. fields: what it is looked up by.  launcher: the class that launches it."""

    fields: tuple[str, ...]
    launcher: str


@dataclass(frozen=True, slots=True)
class Kernels:
    """The instantiations of a bundle, each once, in a fixed order."""

    sums: tuple[Instance, ...]
    lands: tuple[Instance, ...]
    casts: tuple[Instance, ...]


def kernels(plans: Sequence[Plan]) -> Kernels:
    """The kernels that these plans launch. A reduce-scatter sums, and lands where it has several nodes; an all-gather casts where it is asked to."""
    reductions = [p for p in plans if p.collective is Collective.REDUCE_SCATTER]
    sums = _ordered({(p.gradient_dtype, p.lanes) for p in reductions})
    lands = _ordered({(p.lowering, p.lanes) for p in reductions if p.nodes > 1})
    casts = _ordered({pair for p in plans if p.has_cast for pair in zip(p.stored, p.gathered) if pair[0] is not pair[1]})
    return Kernels(
        tuple(Instance((_constant(d), str(lanes)), f"Sum<{_TYPES[d]}, {lanes}>") for d, lanes in sums),
        tuple(_landing(lowering, lanes) for lowering, lanes in lands),
        tuple(Instance((_constant(a), _constant(b)), f"Casting<{_TYPES[a]}, {_TYPES[b]}>") for a, b in casts),
    )


def _landing(lowering: Lowering, lanes: int) -> Instance:
    if lowering is Lowering.P2P:
        return Instance((str(lanes), "Reduction::kInOrder"), f"Landing<InOrder<{lanes}>>")
    return Instance((str(lanes), "Reduction::kInSwitch"), f"Landing<BySwitch<{lanes}>>")


def _ordered(found: Iterable[tuple]) -> list[tuple]:
    return sorted(found, key=lambda row: tuple(x if isinstance(x, int) else list(type(x)).index(x) for x in row))


def _constant(dtype: Dtype) -> str:
    return f"Dtype::k{dtype.value.capitalize()}"
