"""One tree: what it refuses, what it folds, and that its readings agree."""
import random

import pytest

from tidec.index import (
    Cond, Expr, back, ceildiv, compiled, evaluate, every, from_json, least, most, no, residues, some, substitute, symbol, text, times, to_json, top2, where, wrap,
)

M, n, c = symbol("M"), symbol("n"), symbol("c")


def draw(rng: random.Random, depth: int) -> object:
    if depth == 0:
        return rng.choice([M, n, c, rng.randint(-4, 9)])
    a, b = draw(rng, depth - 1), draw(rng, depth - 1)
    return rng.choice([
        lambda: a + b, lambda: a - b, lambda: rng.randint(-3, 4) * a, lambda: a // rng.randint(1, 7), lambda: a % rng.randint(1, 7),
        lambda: where(draw_cond(rng, depth - 1), a, b), lambda: wrap(a, b), lambda: back(a, b), lambda: least(a, b), lambda: most(a, b), lambda: top2(a),
    ])() if isinstance(a, Expr) and isinstance(b, Expr) else (a + b)


def draw_cond(rng: random.Random, depth: int) -> object:
    a, b = draw(rng, depth), n + draw(rng, depth)
    plain = rng.choice([b < a, b <= a, b.eq(a), b.ne(a)]) if isinstance(b, Expr) else b < a
    return rng.choice([plain, every(plain, c < 3), some(plain, M <= 2), no(plain)])


def test_a_wrapped_index_is_the_residue_in_its_range():
    for m in range(1, 9):
        assert [evaluate(wrap(c, M), {"M": m, "c": x}) for x in range(2 * m)] == [x % m for x in range(2 * m)]
        assert [evaluate(back(c, M), {"M": m, "c": x}) for x in range(-m, m)] == [x % m for x in range(-m, m)]


def test_top2_is_the_largest_power_of_two():
    assert [evaluate(top2(c), {"c": x}) for x in (-1, 0, 1, 2, 3, 4, 1023, 1024)] == [0, 0, 1, 2, 2, 4, 512, 1024]


@pytest.mark.parametrize("wrong", [
    lambda: M * n, lambda: n // M, lambda: n % M, lambda: n // 0, lambda: n % -2, lambda: n == 1, lambda: bool(n < 1), lambda: 1 if n else 2, lambda: n + 1.5,
    lambda: n + True, lambda: n + "1",
])
def test_what_is_not_linear_or_has_no_truth_value_is_refused(wrong):
    with pytest.raises(TypeError):
        wrong()


def test_neutral_elements_fold_away():
    assert n + 0 is n and n - 0 is n and 1 * n is n and n // 1 is n
    assert n * 0 == 0 and n % 1 == 0
    assert where(True, n, c) is n and every(True, True) is True and some(False, n < 1).op is (n < 1).op
    assert no(no(n < 1)).op is (n < 1).op


def test_times_is_the_product():
    assert [evaluate(times(c, M - 1, 4), {"c": p, "M": 9}) for p in range(4)] == [0, 8, 16, 24]


def test_ceildiv_rounds_up():
    assert [evaluate(ceildiv(M, 4), {"M": m}) for m in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("seed", range(40))
def test_all_readings_agree(seed):
    rng = random.Random(seed)
    tree = draw(rng, 3) if seed % 2 else draw_cond(rng, 2)
    run = compiled(tree, ("M", "n", "c"))
    again = from_json(to_json(tree))
    for _ in range(25):
        env = {"M": rng.randint(-9, 20), "n": rng.randint(-9, 20), "c": rng.randint(-9, 20)}
        want = evaluate(tree, env)
        assert run(**env) == want == evaluate(again, env), f"seed {seed}: {tree} at {env}"
        assert substitute(tree, env) == want or evaluate(substitute(tree, env), env) == want, f"seed {seed}: {tree} at {env}"


def test_a_residue_carries_the_conditions_on_the_way_to_it():
    tree = where(n < 3, wrap(n + c, M), back(n, M))
    found = [(text(x), [text(p) for p in path]) for x, path in residues(tree)]
    assert found == [("wrap(n + c, M)", ["n < 3"]), ("back(n, M)", ["not n < 3"])]


def test_text_reads_like_the_schedule():
    assert text(where(n.eq(M - 1), (n + 1) // 2, n % 8 - (c - 1))) == "where(n == M - 1, (n + 1) // 2, n % 8 - (c - 1))"
    assert text(n.ne(c)) == "n != c"


@pytest.mark.parametrize("bad", [1.5, None, [], ["+", 1], ["sym", "n"], ["where", 1, 2], {"op": "+"}, ["launch", 1, 2]])
def test_json_that_is_no_expression_is_refused(bad):
    with pytest.raises(ValueError):
        from_json(bad)


def test_conditions_are_their_own_kind():
    assert isinstance(n < 1, Cond) and not isinstance(n < 1, Expr)
