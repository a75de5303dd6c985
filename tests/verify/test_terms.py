"""Terms say what the expressions say: folding and SMT-LIB never change a value."""
import random

import pytest
import z3

from tidec.index import Node, back, every, evaluate, least, most, no, some, symbol, top2, where, wrap
from tidec.verify.solver import evaluate_term
from tidec.verify.smtlib import smt2, with_powers
from tidec.verify.terms import Term, Terms, Values

NAMES = ("M", "n", "c")


def random_index(rng: random.Random, depth: int, with_top2: bool = True) -> object:
    if depth == 0:
        return rng.choice([symbol(rng.choice(NAMES)), rng.randint(-5, 9)])
    a, b = random_index(rng, depth - 1, with_top2), random_index(rng, depth - 1, with_top2)
    pick = rng.randrange(8)
    if pick == 0:
        return a + b
    if pick == 1:
        return a - b
    if pick == 2:
        return rng.randint(-3, 5) * a
    if pick == 3:
        return a // rng.randint(1, 9)
    if pick == 4:
        return a % rng.randint(1, 9)
    if pick == 5:
        return where(random_cond(rng, depth - 1, with_top2), a, b)
    if pick == 6:
        return rng.choice((wrap, back))(a, b) if isinstance(a, Node) and isinstance(b, Node) else least(a, b)
    return most(a, b) if rng.random() < 0.7 or not with_top2 else top2(a)


def random_cond(rng: random.Random, depth: int, with_top2: bool = True) -> object:
    a, b = random_index(rng, depth, with_top2), random_index(rng, depth, with_top2)
    if depth == 0 or rng.random() < 0.5:
        if not isinstance(a, Node):
            a = symbol("n") + a
        return rng.choice([a < b, a <= b, a.eq(b), a.ne(b)])
    x, y = random_cond(rng, depth - 1, with_top2), random_cond(rng, depth - 1, with_top2)
    return rng.choice([every(x, y), some(x, y), no(x)])


def test_a_residue_of_a_residue_is_one_residue():
    t = Terms()
    x, y = t.var("x"), t.var("y")
    assert t.mod(t.add(t.mod(t.add(x, y), 8), t.scale(y, 8)), 8) is t.mod(t.add(x, y), 8)


def test_multiples_leave_a_quotient():
    t = Terms()
    x = t.var("x")
    assert t.div(t.add(t.scale(x, 8), 17), 8) is t.add(x, 2)


def test_a_condition_and_its_opposite_fold():
    t = Terms()
    x = t.var("x")
    assert t.every((t.le(x, 3), t.lt(3, x))) is False
    assert t.some((t.eq(x, 3), t.no(t.eq(x, 3)))) is True


def test_equal_sums_are_one_object():
    t = Terms()
    x, y = t.var("x"), t.var("y")
    assert t.sub(t.add(x, y), y) is x
    assert t.eq(t.add(x, 1), t.add(y, 1)) is t.eq(x, y)


def test_comparisons_of_residues_fold_where_their_range_or_divisors_decide_them():
    t = Terms()
    x, y = t.var("x"), t.var("y")
    assert t.le(t.mod(x, 8), 7) is True and t.lt(t.mod(x, 8), 0) is False
    assert t.eq(t.mod(x, 8), 8) is False and isinstance(t.eq(t.mod(x, 8), 7), Term)
    assert t.eq(t.add(t.scale(x, 3), t.scale(y, 3), -1), 1) is False
    assert t.le(t.add(t.scale(x, 2), t.scale(y, 2), -1), 3) is t.le(t.sub(x, y), 1)
    assert t.eq(t.mod(t.add(x, y), 8), t.mod(x, 8)) is t.eq(t.mod(t.scale(y, -1), 8), 0)


@pytest.mark.parametrize("seed", range(60))
def test_reading_keeps_the_value(seed):
    rng = random.Random(seed)
    tree = random_index(rng, 4) if seed % 2 else random_cond(rng, 3)
    for _ in range(20):
        env = {x: rng.randint(-12, 20) for x in NAMES}
        t = Terms()
        term = t.read(tree, Values({x: t.var(x) for x in NAMES}))
        assert evaluate_term(term, env) == evaluate(tree, env), f"seed {seed}, {tree}, {env}"
        assert t.read(tree, Values(env)) == evaluate(tree, env), f"seed {seed}, {tree}, {env}"


@pytest.mark.parametrize("seed", range(25))
def test_smt2_keeps_the_value(seed):
    rng = random.Random(1000 + seed)
    tree = random_cond(rng, 3, with_top2=False)        # the axioms bound top2, they do not say its value
    t = Terms()
    term = t.read(tree, Values({x: t.var(x) for x in NAMES}))
    for _ in range(4):
        env = {x: rng.randint(-9, 15) for x in NAMES}
        asserted = [term, *(t.eq(t.var(x), v) for x, v in env.items())]
        solver = z3.Solver()
        solver.from_string(smt2([*asserted, *with_powers(t, asserted)]))
        assert (solver.check() == z3.sat) is evaluate(tree, env), f"seed {seed}, {tree}, {env}"


def test_powers_of_two_are_apart():
    t = Terms()
    x, y = t.var("x"), t.var("y")
    asserted = [t.pow2(x), t.pow2(y), t.lt(x, y), t.lt(y, t.scale(x, 2))]
    solver = z3.Solver()
    solver.from_string(smt2([*asserted, *with_powers(t, asserted)]))
    assert solver.check() == z3.unsat


def test_top2_is_at_most_its_argument_and_more_than_half_of_it():
    t = Terms()
    x = t.var("x")
    for wrong in (t.lt(x, t.top2(x)), t.le(t.scale(t.top2(x), 2), x), t.no(t.pow2(t.top2(x)))):
        asserted = [t.le(1, x), wrong]
        solver = z3.Solver()
        solver.from_string(smt2([*asserted, *with_powers(t, asserted)]))
        assert solver.check() == z3.unsat
    assert [t.top2(v) for v in (0, 1, 2, 3, 13, 16)] == [0, 1, 2, 2, 8, 16]


@pytest.mark.parametrize("seed", range(25))
def test_replacing_a_term_keeps_the_value(seed):
    rng = random.Random(2000 + seed)
    tree = random_cond(rng, 3)
    t = Terms()
    variables = {x: t.var(x) for x in NAMES}
    term = t.read(tree, Values(variables))
    taken_apart = t.replace(term, {variables["n"]: t.add(3, t.var("q"), 8)})
    for _ in range(15):
        env = {"M": rng.randint(-9, 20), "c": rng.randint(-9, 20), "q": rng.randint(-3, 3)}
        assert evaluate_term(taken_apart, env) == evaluate(tree, {**env, "n": 8 * env["q"] + 3}), f"seed {seed}, {tree}, {env}"
