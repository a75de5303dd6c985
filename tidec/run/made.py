"""Made data: what a plan is given where no model is there. Every rank, parameter, row and column has a value of its own.

N ranks, r rank, e call, p parameter, i element of a parameter. A value is drawn by a 64-bit mix of (seed, call, rank, parameter, element).
"""
from __future__ import annotations

from enum import Enum
from itertools import product

import numpy as np

from tidec.inputs.ask import Collective
from tidec.inputs.signature import Dtype
from tidec.interpret.bits import Given, cast, narrowed, poisoned
from tidec.plan.arena import stored_bytes, stored_starts
from tidec.plan.ir import Plan
from tidec.plan.layout import PACK_ITEM_BYTES


class Kind(Enum):
    """Which numbers. NUMBERS: of 25 binades and both signs, so that the order of a sum shows in fp32. INTEGERS: -63..63, whose sums are exact.
    CLASSES: numbers, with NaN, both infinities and -0.0 strewn in."""

    NUMBERS = "numbers"
    INTEGERS = "integers"
    CLASSES = "classes"


def make(plan: Plan, *, calls: int, seed: int = 0, kind: Kind = Kind.NUMBERS, accumulate: bool = False, is_poisoned: bool = False) -> Given:
    """What `calls` calls of a plan are given. is_poisoned: padding of shards, and outputs that nobody accumulates into, start as NaN, else as 0."""
    each = tuple(product(range(calls), range(plan.ranks)))
    is_gather = plan.collective is Collective.ALL_GATHER
    inputs = {(e, r): (_shard(plan, e, r, seed, kind, is_poisoned),) if is_gather else _gradients(plan, e, r, seed, kind) for e, r in each}
    size = plan.layout.landing_bytes if is_gather else PACK_ITEM_BYTES * plan.layout.packed_elems

    def before(e: int, r: int) -> np.ndarray:
        if accumulate and not is_gather:
            return values(plan.layout.packed_elems, Dtype.FP32, (seed, e, r, -1), kind).view(np.uint8)
        return poisoned(size) if is_poisoned else np.zeros(size, np.uint8)

    def rows(of: object) -> tuple:
        return tuple(tuple(of(e, r) for r in range(plan.ranks)) for e in range(calls))

    return Given(rows(lambda e, r: inputs[e, r]), rows(before))


def values(count: int, dtype: Dtype, place: tuple[int, int, int, int], kind: Kind, first: int = 0) -> np.ndarray:
    """Memory of `count` values of a place (seed, call, rank, parameter), from element `first` on."""
    drawn = _mixed(np.arange(first, first + count, dtype=np.uint64) + _start(place))
    if kind is Kind.INTEGERS:
        return _as(((drawn >> np.uint64(32)) % np.uint64(127)).astype(np.float32) - np.float32(63), dtype)
    mantissa = np.float32(1) + (drawn >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    scale = np.exp2(((drawn >> np.uint64(8)) % np.uint64(25)).astype(np.float32) - np.float32(12))
    numbers = np.where((drawn & np.uint64(1)).astype(bool), -mantissa, mantissa) * scale
    if kind is Kind.CLASSES:
        special = np.array([np.nan, np.inf, -np.inf, -0.0, -0.0, -0.0], np.float32)
        which = ((drawn >> np.uint64(16)) % np.uint64(24)).astype(np.intp)
        numbers = np.where(which < len(special), special[np.minimum(which, len(special) - 1)], numbers)
    return _as(numbers.astype(np.float32), dtype)


def _as(numbers: np.ndarray, dtype: Dtype) -> np.ndarray:
    return numbers if dtype is Dtype.FP32 else narrowed(numbers, dtype)


def _start(place: tuple[int, int, int, int]) -> np.uint64:
    state = np.zeros(1, np.uint64)
    for x in place:
        state = _mixed(state * np.uint64(31) + np.array([x + 2], np.uint64))
    return state[0]


def _mixed(x: np.ndarray) -> np.ndarray:
    """splitmix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _gradients(plan: Plan, e: int, r: int, seed: int, kind: Kind) -> tuple[np.ndarray, ...]:
    nothing = np.zeros(0, np.uint8)
    return tuple(
        values(p.real_elems, plan.gradient_dtype, (seed, e, r, i), kind).view(np.uint8) if p.is_trainable else nothing for i, p in enumerate(plan.layout.params)
    )


def _shard(plan: Plan, e: int, r: int, seed: int, kind: Kind, is_poisoned: bool) -> np.ndarray:
    """Rank r's rows of every parameter, as they are stored."""
    layout, stored = plan.layout, plan.stored if plan.has_cast else plan.gathered
    size = stored_bytes(layout, stored)
    shard = poisoned(size) if is_poisoned else np.zeros(size, np.uint8)
    for i, (p, dtype, start) in enumerate(zip(layout.params, stored, stored_starts(layout, stored))):
        first = min(r * p.shard_elems, p.real_elems)
        raw = values(min(p.shard_elems, p.real_elems - first), dtype, (seed, e, -1, i), kind, first).view(np.uint8)
        shard[start : start + raw.size] = raw
    return shard


def gathered(plan: Plan, e: int, p: int, seed: int, kind: Kind) -> np.ndarray:
    """Memory of a whole parameter, as it must be delivered."""
    param, stored = plan.layout.params[p], plan.stored[p] if plan.has_cast else plan.gathered[p]
    return cast(values(param.real_elems, stored, (seed, e, -1, p), kind), stored, plan.gathered[p])
