"""Rows have one owner each, and alpha is exact until fp32."""
import random
import struct
from fractions import Fraction

import pytest

from tidec.errors import TidecError
from tidec.inputs.contract import as_fp32, gradient_scale, owned_rows, rows_per_rank


def test_seven_rows_on_four_ranks_are_two_two_two_and_one():
    assert rows_per_rank(7, 4) == 2
    assert [owned_rows(7, 4, r) for r in range(4)] == [(0, 2), (2, 4), (4, 6), (6, 7)]


def test_five_rows_on_four_ranks_leave_the_last_one_empty():
    assert [owned_rows(5, 4, r) for r in range(4)] == [(0, 2), (2, 4), (4, 5), (5, 5)]


def test_every_row_has_one_owner_in_rank_order():
    for seed in range(200):
        rng = random.Random(seed)
        rows, ranks = rng.randrange(0, 300), rng.randrange(1, 65)
        owned = [row for r in range(ranks) for row in range(*owned_rows(rows, ranks, r))]
        assert owned == list(range(rows)), f"seed {seed}: D={rows} N={ranks}"


def test_a_rank_outside_is_refused():
    for rank in (-1, 4):
        with pytest.raises(TidecError, match=f"P102 out-of-range.: rank {rank} is outside 0..3"):
            owned_rows(7, 4, rank)


def test_alpha_is_one_over_n_unless_a_divide_factor_is_set():
    assert gradient_scale(64) == Fraction(1, 64)
    assert gradient_scale(3) == Fraction(1, 3)
    assert gradient_scale(64, divide_factor=1.0) == 1
    assert gradient_scale(64, divide_factor=2.5) == Fraction(2, 5)
    assert gradient_scale(64, divide_factor=0.1) == 1 / Fraction(0.1)


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_divide_factor_that_is_no_positive_number_is_refused(factor):
    with pytest.raises(TidecError, match="P001 usage.: a gradient divide factor of"):
        gradient_scale(4, divide_factor=factor)


def test_alpha_is_rounded_to_fp32_once():
    assert as_fp32(Fraction(0)) == 0.0 and as_fp32(Fraction(1, 3)) == struct.unpack("f", struct.pack("f", 1 / 3))[0]
    # 1 + 2**-24 + 2**-60 lies just above a tie: rounding to a double first would lose the last term and round to even, 1.0.
    assert as_fp32(1 + Fraction(1, 2**24) + Fraction(1, 2**60)) == 1 + 2**-23
    assert as_fp32(Fraction(1, 2**150)) == 0.0 and as_fp32(Fraction(3, 2**150)) == 2**-148
    for n in range(1, 2049):
        assert as_fp32(Fraction(1, n)) == struct.unpack("f", struct.pack("f", 1 / n))[0], n
    with pytest.raises(TidecError, match="larger than any fp32 number"):
        as_fp32(Fraction(2) ** 128)
