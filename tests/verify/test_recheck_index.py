"""The checker reads expressions and loops as the generator means them, though it shares no line with it."""
from __future__ import annotations

import pytest

from tidec.index import back, evaluate, every, least, no, some, symbol, to_json, top2, where, wrap
from tidec.verify import recheck_index
from tidec.verify.recheck_index import Table, TooLarge, families, read


def test_an_expression_by_hand():
    env = {"M": 5, "n": 3, "c": 4}
    assert read(["wrap", ["+", "n", "c"], "M"], env) == 2 and read(["back", ["-", "n", "c"], "M"], env) == 4
    assert read(["where", ["<=", 2, "c"], ["//", "c", 3], ["%", "c", 3]], env) == 1 and read(["top2", "M"], env) == 4
    assert read(["and", ["<", "n", "c"], ["not", ["==", "n", 3]]], env) is False and read(True, env) is True


def trees(draw, depth: int) -> tuple[object, object]:
    """A random number and a random condition over M, n and x."""
    if depth == 0:
        return draw.choice((symbol("M"), symbol("n"), symbol("x"), draw.randrange(-3, 9))), symbol("x") < draw.randrange(9)
    (a, p), (b, q) = trees(draw, depth - 1), trees(draw, depth - 1)
    number = draw.choice((lambda: a + b, lambda: a - b, lambda: 3 * a, lambda: (a + symbol("x")) // 3, lambda: (a + symbol("n")) % 4, lambda: where(p, a, b),
                          lambda: least(a, b), lambda: wrap(a, symbol("M")), lambda: back(a, symbol("M")), lambda: top2(a + symbol("x"))))()
    cond = draw.choice((lambda: symbol("n") + a <= b, lambda: (symbol("x") + a).eq(b), lambda: every(p, q), lambda: some(p, q), lambda: no(p)))()
    return number, cond


@pytest.mark.parametrize("seed", range(60))
def test_random_expressions_have_one_value_in_both_readings(seed, draws):
    draw = draws(seed)
    for tree in trees(draw, 4):
        envs = [dict(M=draw.randrange(1, 9), n=draw.randrange(9), x=draw.randrange(9)) for _ in range(7)]
        wanted = [evaluate(tree, env) for env in envs]
        stored = to_json(tree)
        assert [read(stored, env) for env in envs] == wanted
        columns = Table({name: [env[name] for env in envs] for name in envs[0]}, count=len(envs))
        assert columns.column(stored) == wanted


def loop(name: str, lo: object, hi: object, *body: dict, step: str = "by_one", lanes: bool = False) -> dict:
    return {"is": "loop", "name": name, "lo": lo, "hi": hi, "step": step, "over_lanes": lanes, "body": list(body)}


def test_a_table_has_the_points_of_nested_loops_in_order():
    op = {"is": "op"}
    body = [op, loop("h", 1, "M", loop("k", 0, "h", {"is": "when", "cond": ["<", "k", 3], "body": [op]}), step="doubling")]
    first, second = families(body)
    assert (first.places, second.places) == ((0,), (1, 0, 0, 0))
    table = Table({"M": 6}).under(second.path)
    assert table.rows(["h", "k"]) == [(1, 0), (2, 0), (2, 1), (4, 0), (4, 1), (4, 2)]
    assert table.rows(second.position)[-1] == (1, 4, 0, 2, 0, 0)
    assert Table({"M": 1}).under(second.path).count == 0


def test_a_loop_over_lanes_may_be_sampled_and_others_not():
    body = [loop("o", 0, 8, loop("c", 0, 2, {"is": "op"}), lanes=True)]
    (one,) = families(body)
    assert Table({}).under(one.path, (0, 5)).rows(["o", "c"]) == [(0, 0), (0, 1), (5, 0), (5, 1)]
    assert Table({}).under(one.path).count == 16


def test_a_loop_that_is_too_long_or_never_ends_is_refused():
    (one,) = families([loop("x", 0, recheck_index.MAX_ROWS + 1, {"is": "op"})])
    with pytest.raises(TooLarge):
        Table({}).under(one.path)
    (two,) = families([loop("x", 0, 9, {"is": "op"}, step="doubling")])
    with pytest.raises(ValueError, match="doubles from 0"):
        Table({}).under(two.path)


@pytest.mark.parametrize("wrong", ["nobody", ["power", 1, 2], ["+", 1], ["+", 1, 2, 3], ["where", True, 1], [], None, ["//", 4, 0]])
def test_what_is_no_expression_is_refused(wrong):
    with pytest.raises((KeyError, TypeError, ValueError, IndexError, ArithmeticError)):
        read(wrong, {"M": 1})
