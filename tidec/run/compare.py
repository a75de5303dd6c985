"""How what a target gave is judged: bit for bit against the reference, and in units of the last place against fp64.

N ranks, r rank, e call, p parameter. NaNs are equal whatever their bits are: which NaN a sum gives is not part of a plan.
"""
from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from tidec.inputs.ask import Collective
from tidec.inputs.signature import Dtype
from tidec.interpret.bits import Given, Outputs, widened
from tidec.plan.arena import stored_starts
from tidec.plan.ir import Plan

_QUIET = np.float32(np.nan)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first value that differs, by call, rank, parameter and place. row, column: of the parameter; -1, -1 in padding. Values are as memory, in hex."""

    call: int
    rank: int
    parameter: str
    row: int
    column: int
    got: str
    wanted: str


def first_difference(plan: Plan, got: Outputs, wanted: Outputs) -> Difference | None:
    """Where two outputs first differ; `None` = nowhere."""
    for e, (row, other) in enumerate(zip(got, wanted, strict=True)):
        for r, (a, b) in enumerate(zip(row, other, strict=True)):
            bits, want = _comparable(plan, a), _comparable(plan, b)
            if bits.shape != want.shape:
                return Difference(e, r, "", -1, -1, f"{a.size} bytes", f"{b.size} bytes")
            found = np.flatnonzero(bits != want)
            if found.size:
                return _named(plan, e, r, int(found[0]), bits[found[0]], want[found[0]])
    return None


def digest(plan: Plan, outputs: Outputs) -> str:
    """sha256 of all outputs, call by call and rank by rank; every NaN of a sum counts as the quiet one."""
    whole = hashlib.sha256()
    for row in outputs:
        for raw in row:
            whole.update(np.ascontiguousarray(_comparable(plan, raw)).tobytes())
    return whole.hexdigest()


def max_error_ulps(plan: Plan, given: Given, outputs: Outputs, *, alpha: float = 1.0, accumulate: bool = False) -> float:
    """By how much an output misses the fp64 result at most, in units of the last place of the delivered type; finite values only.

    In a sum the unit is that of the sum of the terms' sizes, so that terms which cancel do not make it look worse than its additions are.
    """
    errors = [0.0]
    for e in range(given.calls):
        if plan.collective is Collective.ALL_GATHER:
            errors += (_gather_error(plan, given, outputs, e, p) for p in range(len(plan.layout.params)))
        else:
            errors += (_reduce_error(plan, given, outputs, e, p, alpha, accumulate) for p in range(len(plan.layout.params)))
    return max(errors)


def _comparable(plan: Plan, raw: np.ndarray) -> np.ndarray:
    """Memory as ints. A landing is bytes that were copied; a sum is fp32 numbers."""
    if plan.collective is Collective.ALL_GATHER:
        return raw
    numbers = raw.view(np.float32)
    return np.where(np.isnan(numbers), _QUIET, numbers).view(np.uint32)


def _named(plan: Plan, e: int, r: int, at: int, got: np.integer, wanted: np.integer) -> Difference:
    for p, param in enumerate(plan.layout.params):
        if plan.collective is Collective.ALL_GATHER:
            start, size = param.start_bytes * plan.ranks, param.shard_bytes * plan.ranks
            element = (at - start) // param.item_bytes
        else:
            start, size = param.packed_start, param.packed_elems
            element = r * param.shard_elems + at - start
        if start <= at < start + size:
            is_real = element < param.real_elems
            row, column = divmod(element, param.row_elems) if is_real else (-1, -1)
            return Difference(e, r, param.name, row, column, f"{int(got):#x}", f"{int(wanted):#x}")
    raise AssertionError((e, r, at))


def _ulps(got: np.ndarray, wanted: np.ndarray, size: np.ndarray, dtype: Dtype) -> float:
    """The largest distance of finite values, in units of the last place of a number of that size."""
    digits, least = {Dtype.BF16: (7, -126), Dtype.FP16: (10, -14), Dtype.FP32: (23, -126), Dtype.FP64: (52, -1022)}[dtype]
    keep = np.isfinite(wanted) & np.isfinite(got)
    if not keep.any():
        return 0.0
    exponent = np.maximum(np.frexp(size[keep])[1] - 1, least)
    return float(np.max(np.abs(got[keep] - wanted[keep]) / np.exp2((exponent - digits).astype(np.float64))))


def _as_fp64(raw: np.ndarray, dtype: Dtype) -> np.ndarray:
    if dtype is Dtype.FP64:
        return raw.view(np.float64)
    return widened(raw.view({Dtype.BF16: np.uint16, Dtype.FP16: np.float16, Dtype.FP32: np.float32}[dtype]), dtype).astype(np.float64)


def _gather_error(plan: Plan, given: Given, outputs: Outputs, e: int, p: int) -> float:
    param, target = plan.layout.params[p], plan.gathered[p]
    types = plan.stored if plan.has_cast else plan.gathered
    source, start = types[p], stored_starts(plan.layout, types)[p]
    whole = np.concatenate([given.inputs[e][r][0][start : start + param.shard_elems * source.item_bytes] for r in range(plan.ranks)])
    wanted = _as_fp64(whole, source)[: param.real_elems]
    at = param.start_bytes * plan.ranks
    with np.errstate(all="ignore"):
        return max(_ulps(_as_fp64(row[at : at + param.real_elems * param.item_bytes], target), wanted, wanted, target) for row in outputs[e])


def _reduce_error(plan: Plan, given: Given, outputs: Outputs, e: int, p: int, alpha: float, accumulate: bool) -> float:
    param = plan.layout.params[p]
    if not param.packed_elems:
        return 0.0
    with np.errstate(all="ignore"):
        terms = [_as_fp64(given.inputs[e][r][p], plan.gradient_dtype) * float(np.float32(alpha)) for r in range(plan.ranks)]
        total, sizes, error = sum(terms), sum(map(np.abs, terms)), 0.0
        for r in range(plan.ranks):
            first = min(r * param.shard_elems, param.real_elems)
            wanted, size = (x[first : first + param.shard_elems] for x in (total, sizes))
            here = slice(param.packed_start, param.packed_start + wanted.size)
            if accumulate:
                before = given.before[e][r].view(np.float32)[here].astype(np.float64)
                wanted, size = wanted + before, size + np.abs(before)
            error = max(error, _ulps(outputs[e][r].view(np.float32)[here].astype(np.float64), wanted, size, Dtype.FP32))
        return error
