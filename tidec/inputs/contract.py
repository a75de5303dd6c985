"""What every rank must hold at the end, in rows; no bytes and no schedule.

A parameter is D rows of K values. Rank r of N owns rows [r*R, (r+1)*R) with R = ceil(D/N); rows past D are zero.

All-gather: every rank ends with all N*R rows of every parameter, the D real ones first, so that they are one contiguous
(D, K) tensor, and the padding, where there is any, at the tail.

Reduce-scatter: rank r ends with, for every trainable parameter in the group's order, its R rows of
`(output if accumulate else 0) + alpha * sum over ranks u of G[u]`, summed in fp32.

Source: paper section 2.1 and eq. 5.
"""
from __future__ import annotations

import math
from fractions import Fraction

from tidec.errors import Diagnostic, TidecError

_FP32_MANTISSA_BITS = 24
_FP32_MIN_EXPONENT = -149
_FP32_MAX = Fraction((2**24 - 1) * 2**104)


def rows_per_rank(rows: int, ranks: int) -> int:
    """R = ceil(D/N): the rows every rank stores of a parameter, padding counted.

    rows: D >= 0.  ranks: N >= 1.  Source: paper section 2.1; torch.chunk gives the same.
    """
    assert rows >= 0 and ranks >= 1, (rows, ranks)
    return -(-rows // ranks)


def owned_rows(rows: int, ranks: int, rank: int) -> tuple[int, int]:
    """The real rows of a rank, (first, last excluded); both are D where the rank owns none.

    rows: D >= 0.  ranks: N >= 1.  rank: 0 <= r < N.  Raises P102 where the rank is out of range.
    """
    if not 0 <= rank < ranks:
        raise TidecError(Diagnostic("P102", f"rank {rank} is outside 0..{ranks - 1}", help="ranks are numbered n*L + j"))
    per_rank = rows_per_rank(rows, ranks)
    return min(rank * per_rank, rows), min((rank + 1) * per_rank, rows)


def gradient_scale(ranks: int, *, divide_factor: float | Fraction | None = None) -> Fraction:
    """alpha, exactly: 1/N, or 1/f where the job set the divide factor f (`None`: it set none).

    Raises P001 where f is not a finite number above zero.  Source: paper eq. 5; FSDP2's set_gradient_divide_factor.
    """
    assert ranks >= 1, ranks
    if divide_factor is None:
        return Fraction(1, ranks)
    if not (math.isfinite(divide_factor) and divide_factor > 0):
        raise TidecError(Diagnostic("P001", f"a gradient divide factor of {divide_factor} scales by no number",
                                    help="give a finite factor above zero; 1.0 sums without scaling"))
    return 1 / Fraction(divide_factor)


def as_fp32(value: Fraction) -> float:
    """The fp32 number nearest to an exact value >= 0, ties to even; rounded once. Raises P001 past the largest one."""
    assert value >= 0, value
    if value == 0:
        return 0.0
    # 2**e <= value < 2**(e+1), so a unit in the last place is 2**(e - 23), and never below 2**-149.
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if Fraction(2) ** exponent > value:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - _FP32_MANTISSA_BITS + 1, _FP32_MIN_EXPONENT)
    rounded = round(value / unit) * unit
    if rounded > _FP32_MAX:
        raise TidecError(Diagnostic("P001", "a gradient scale is larger than any fp32 number", help="give a larger divide factor"))
    return float(rounded)
