"""Expressions are made shorter and keep their values."""
import pytest

from tidec.emit.simplify import Simplifier
from tidec.index import Cond, Expr, Op, back, ceildiv, every, evaluate, least, most, no, some, symbol, text, times, top2, where, wrap

M, c, J, w, e = (symbol(s) for s in ("M", "c", "J", "w", "e"))
RANGES = {"M": (8, 8), "c": (1, 7), "J": (0, 13), "w": (0, 1), "e": (0, 1000)}


@pytest.mark.parametrize(("node", "want"), [
    (M - 1 + 1 - 1 - (M - 1 - J), "J"),                                # M goes where it cancels
    (J + 1 - M + 3, "J - M + 4"),                                      # what is added, what is taken away, the constant
    (3 - J, "3 - J"),
    (where(c.eq(M), 0, c), "c"),                                       # the own contributor is none of 1..7
    (wrap(c + where(c.eq(M), 0, c), M), "wrap(2 * c, M)"),
    (wrap(c, M), "c"), (back(c - 8, M), "c + M - 8"), (wrap(c + 7, M), "c - M + 7"),
    (ceildiv(M, 8), "1"), (where(ceildiv(M, 8).eq(1), 0, w % 2), "0"),
    (w % 2, "w"), ((8 * w + c) % 8, "c"), ((8 * w + c) // 8, "w"), ((c - 9) % 8, "c - 1"), ((J - 5) % 8, "(J + 3) % 8"),
    (least(c, 9), "c"), (most(c, 0), "c"), (where(where(J >= 7, 1, 0).eq(1), 7, 0), "where(7 <= J, 7, 0)"),
    (where(J >= 7, 8, 0).eq(0), "J < 7"), (where(J >= 7, 8, 0).eq(3), "False"),
    (c < 8, "True"), (some(c < 8, J < 3), "True"), (every(c < 8, J < 3), "J < 3"), (every(J < 3, no(J < 3)), "False"), (some(J < 3, no(J < 3)), "True"),
    (no(J <= 3), "3 < J"), (top2(c), "top2(c)"),
])
def test_shorter_forms_worked_by_hand(node, want):
    assert text(Simplifier(RANGES)(node)) == want


def test_the_target_of_a_block_in_a_second_pass_is_never_the_own_node():
    # dest(x) of tide_rs: 1..7 in both passes, which only a split of x shows.
    dest = J - times(where(J >= M - 1, 1, 0), M - 1, 2) + 1
    assert Simplifier(RANGES)(dest.eq(M)) is False


def test_equal_expressions_are_one_object():
    simple = Simplifier(RANGES)
    assert simple(2 * J + c + 1) is simple(1 + J + c + J)
    assert simple(wrap(c + J, M)) is simple(wrap(c + J + 0, M))


def test_a_product_of_two_symbols_is_kept():
    simple = Simplifier(RANGES)
    assert text(simple(Expr(Op.ADD, Expr(Op.MUL, e, M), c))) == "e * M + c"
    assert simple.bounds(simple(Expr(Op.MUL, e, M))) == (0, 8000)


def test_a_range_is_stated_once():
    simple = Simplifier(RANGES)
    with pytest.raises(AssertionError):
        simple.add("c", 0, 3)


def test_values_are_kept_wherever_the_ranges_reach(draws):
    for seed in range(250):
        r = draws(seed)
        ranges = {"M": (r.randint(1, 9),) * 2} | {s: (low := r.randint(-3, 4), low + r.randint(0, 9)) for s in "xyz"}
        simple = Simplifier(ranges)
        node = _expression(r, 4)
        short = simple(node)
        low, high = simple.bounds(short)
        for _ in range(40):
            env = {s: r.randint(*ranges[s]) for s in ranges}
            want = evaluate(node, env)
            assert evaluate(short, env) == want, f"{text(node)} became {text(short)}, at {env}"
            assert low <= want <= high, f"{text(short)} is {want} at {env}, outside {low}..{high}"


def _expression(r, depth):
    if depth == 0 or r.random() < 0.15:
        return r.choice([symbol(r.choice("Mxyz")), r.randint(-9, 9)])
    a, b = _expression(r, depth - 1), _expression(r, depth - 1)
    one = a if isinstance(a, Expr) else symbol("x") + a
    return r.choice([
        lambda: a + b, lambda: a - b, lambda: r.randint(-3, 9) * one, lambda: one // r.randint(1, 8), lambda: one % r.randint(1, 8), lambda: wrap(one, b),
        lambda: back(one, b), lambda: where(_condition(r, depth - 1), a, b), lambda: least(one, b), lambda: most(one, b), lambda: top2(one),
        lambda: times(one, b, 3),
    ])()


def _condition(r, depth):
    a, b = symbol("y") + _expression(r, depth), _expression(r, depth)
    a = a if isinstance(a, Expr) else symbol("y")
    plain = r.choice([lambda: a < b, lambda: a <= b, lambda: a.eq(b), lambda: a.ne(b)])()
    assert isinstance(plain, Cond)
    return plain if depth == 0 or r.random() < 0.6 else r.choice([every, some])(plain, _condition(r, depth - 1))
