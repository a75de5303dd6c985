"""What values an expression can have."""
import pytest

from tidec.emit.ranges import bounds, bounds_by_cases
from tidec.index import Expr, Op, back, least, most, symbol, top2, where, wrap
from tidec.index import evaluate

M, x, y = symbol("M"), symbol("x"), symbol("y")
RANGES = {"M": (8, 8), "x": (0, 7), "y": (-2, 3)}


@pytest.mark.parametrize(("node", "want"), [
    (x + y, (-2, 10)), (x - y, (-3, 9)), (3 * y, (-6, 9)), (y // 2, (-1, 1)), (x % 4, (0, 3)), ((x + 8) % 16, (8, 15)),
    (least(x, 5), (0, 5)), (most(x, y), (0, 7)), (top2(x), (0, 4)), (wrap(x, 4), (0, 3)), (wrap(x, M), (0, 7)), (back(y, M), (0, 7)),
    (where(x <= 3, x, 3), (0, 3)), (x < 8, (1, 1)), (x.eq(9), (0, 0)), (x.ne(3), (0, 1)), (where(x < 0, 100, y), (-2, 3)), (5, (5, 5)), (True, (1, 1)),
])
def test_bounds_worked_by_hand(node, want):
    assert bounds(node, RANGES) == want


def test_a_case_that_speaks_of_its_symbol_is_split():
    # x - 4 below 4 is negative, but there the case gives x: by the operators alone -4 .. 7, by cases 0 .. 3.
    node = where(x >= 4, x - 4, x)
    assert bounds(node, RANGES) == (-4, 7)
    assert bounds_by_cases(node, RANGES) == (0, 3)


def test_a_case_of_a_case_is_split_too():
    part = where(x >= 3, 1, 0)
    assert bounds_by_cases(x - where(part.eq(1), 3, 0), {"x": (0, 5)}) == (0, 2)


def test_a_product_of_symbols_has_a_range():
    assert bounds(Expr(Op.MUL, x, y), RANGES) == (-14, 21)


def test_every_value_is_inside(draws):
    r = draws(11)
    for _ in range(300):
        a, b, d = r.randint(-9, 9), r.randint(-9, 9), r.randint(1, 7)
        node = where(a * x + b <= y, least(x + a, y), back(y + 2, M) % d) + wrap(x, 4) // d
        low, high = bounds_by_cases(node, RANGES)
        values = [evaluate(node, {"M": 8, "x": i, "y": k}) for i in range(8) for k in range(-2, 4)]
        assert low <= min(values) and max(values) <= high, (a, b, d)
