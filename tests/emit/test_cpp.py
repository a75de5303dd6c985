"""Expressions as C++."""
import pytest

from tidec.emit.cpp import PRODUCT, SUM, Speller
from tidec.emit.simplify import Simplifier
from tidec.index import Expr, Op, back, every, least, most, no, some, symbol, top2, where, wrap

M, x, y = symbol("M"), symbol("x"), symbol("y")
RANGES = {"M": (8, 8), "x": (0, 20), "y": (-5, 5)}


def spelt(node, level=0, **named):
    simple = Simplifier(RANGES)
    return Speller(simple, {id(simple(symbol(s))): name for s, name in named.items()}).text(simple(node), level)


@pytest.mark.parametrize(("node", "want"), [
    (3, "3"), (True, "true"), (x - (y - 2), "x - y + 2"), (4 * (x + y), "4 * x + 4 * y"), ((x + 1) % 4, "(x + 1) % 4"), (x // 4, "x / 4"),
    (where(x < 3, x, y), "x < 3 ? x : y"), (least(x, y), "least(x, y)"), (most(x, 3), "most(x, 3)"),
    (where(x < 3, where(y < 0, 1, 2), 5), "x < 3 ? (y < 0 ? 1 : 2) : 5"), (where(x < 3, 1, where(y < 0, 2, 5)), "x < 3 ? 1 : y < 0 ? 2 : 5"),
    (wrap(x, M), "wrap(x, M)"), (back(y, M), "back(y, M)"), (top2(x), "top2(x)"),
    (3 <= x, "x >= 3"), (M < x, "x > M"), (x.ne(4), "x != 4"), (no(x.eq(4)), "x != 4"), (x.eq(y), "x == y"),
    (every(x < 3, some(y < 0, x.eq(1))), "x < 3 && (y < 0 || x == 1)"), (some(every(x < 3, y < 0), x.eq(7)), "(x < 3 && y < 0) || x == 7"),
    (no(some(x < 3, y.eq(0))), "!(x < 3 || y == 0)"), (Expr(Op.MUL, x, y + 1), "x * (y + 1)"), (y - 3, "y - 3"), (-2 * y, "(-2) * y"),
])
def test_spelt_as_a_person_would(node, want):
    assert spelt(node) == want


def test_parentheses_where_the_place_binds_tighter():
    assert spelt(x + y, PRODUCT) == "(x + y)"
    assert spelt(where(x < 3, x, y), SUM) == "(x < 3 ? x : y)"
    assert spelt(x % 4, SUM) == "x % 4"


def test_a_name_stands_for_its_expression_except_where_it_is_defined():
    simple = Simplifier(RANGES)
    node = simple(wrap(x, M))
    speller = Speller(simple, {id(node): "to"})
    assert speller.text(simple(wrap(x, M) + 1)) == "to + 1"
    assert speller.text(node, is_whole=True) == "wrap(x, M)"


def test_a_loop_index_is_spelt_by_its_name():
    simple = Simplifier({"c#7": (0, 9)})
    index = simple(symbol("c#7"))
    assert Speller(simple, {id(index): "c"}).text(simple(symbol("c#7") + 1)) == "c + 1"


def test_a_number_past_64_bits_is_refused():
    with pytest.raises(AssertionError):
        spelt(2**63)
