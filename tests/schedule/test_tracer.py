"""The language: what a trace holds, and what is refused, with its line."""
import pytest

from tidec.errors import TidecError
from tidec.schedule.branch import specialise
from tidec.schedule.catalog import names, path, traced
from tidec.schedule.program import OpKind, Step, canonical, digest, statements

HEAD = '''from tidec.schedule.idioms import *
def ring_ag(s):
    M, (n, j), e = s.nodes, s.here, s.call
    a = s.buffer("a", Block.SHARD, slot=M)
    f = s.flag("f", q=(0, M))
'''


def written(body: str):
    return traced("ring_ag", 4, source=HEAD + "".join(f"    {line}\n" for line in body.strip().splitlines()))


def test_ops_carry_their_stream_loops_and_line():
    program = written('with s.stream("x"):\n    for q in s.serial("q", 0, M):\n        s.zero(a[q])\n        s.signal(f[q])')
    zero, signal = statements(program)
    assert (zero.op.kind, zero.op.stream, [l.name for l in zero.loops]) == (OpKind.ZERO, "x", ["q"])
    assert (zero.op.id, signal.op.id) == (0, 1)
    assert str(zero.op.spot) == "schedules/ring_ag.py:8"


def test_a_helper_s_ops_say_who_called_it():
    program = written('def clear(q):\n    s.zero(a[q])\nwith s.stream("x"):\n    clear(0)')
    spot = statements(program)[0].op.spot
    assert (spot.line, [v.line for v in spot.via]) == (7, [9])


@pytest.mark.parametrize(("body", "says"), [
    ("s.zero(a[0])", "outside every stream"),
    ('with s.stream("x"):\n    for q in s.each("q", 0, M): s.zero(a[q])', "not ended by a join"),
    ('with s.stream("x"):\n    for q in s.each("q", 0, M):\n        s.zero(a[q])\n        with s.stream("y"): s.zero(a[q])\n    s.join()', "it may use one"),
    ('with s.stream("x"):\n    for q in s.serial("q", 0, M):\n        for q in s.serial("q", 0, M): s.zero(a[q])', "the loop index q is taken"),
    ('with s.stream("x"):\n    for n in s.serial("n", 0, M): s.zero(a[0])', "the loop index n is taken"),
    ('with s.stream("x"):\n    for q in s.serial("q", 0, M):\n        s.zero(a[q])\n        break', "left by break"),
    ('with s.stream("x"): s.zero(a[0, 1])', "has 1 dimensions, not 2"),
    ('with s.stream("x"): s.signal(f[0, 1])', "has 1 keys, not 2"),
    ('b = s.buffer("b", Block.SHARD, per=("w",), one=1)\nwith s.stream("x"): s.zero(b[0])', "no loop is named w"),
    ('b = s.buffer("a", Block.SHARD, one=1)', "declared twice"),
    ('b = s.buffer("b", Block.SHARD, rests_at_zero=True, one=1)', "must name the use before"),
    ('with s.stream("x"): s.zero(a[n * j])', "not linear"),
    ('with s.stream("x"):\n    if n < 1: s.zero(a[0])', "no truth value"),
])
def test_a_broken_rule_is_refused_with_its_line(body, says):
    with pytest.raises(TidecError, match="P007 bad-schedule") as caught:
        written(body)
    assert says in str(caught.value)
    assert "schedules/ring_ag.py:" in str(caught.value) or says in ("not ended by a join", "it may use one", "left by break")


@pytest.mark.parametrize(("source", "says"), [
    ("def ring_ag(s:", "is not Python"),
    ("def other(s): pass", "has no function ring_ag"),
    ("from tidec.nowhere import x\ndef ring_ag(s): pass", "ModuleNotFoundError"),
    ("def ring_ag(s): s.signall(1)", "AttributeError"),
    ("def ring_ag(s): return tto", "NameError"),
    ("def ring_ag(s): return [][1]", "IndexError"),
    ("def ring_ag(s): return 1 // 0", "ZeroDivisionError"),
    ("def ring_ag(s): ring_ag(s)", "RecursionError"),
])
def test_a_mistake_in_a_schedule_is_refused_never_a_traceback(source, says):
    with pytest.raises(TidecError, match="P007 bad-schedule") as caught:
        traced("ring_ag", 4, source=source)
    assert says in str(caught.value) and "schedules/ring_ag.py" in str(caught.value)


def test_the_last_set_inside_a_set_is_joined_with_it():
    program = written('with s.stream("x"):\n    for o in s.each_lane("o"):\n        for q in s.run("q", 0, M): s.zero(a[q])\n    s.join()')
    assert [l.step for l in statements(program)[0].loops] == [Step.EACH, Step.RUN]


def test_the_branches_of_a_program_settle_the_node_count():
    program = traced("tide_rs", 8, W=8, k=4)
    one, several = specialise(program, True), specialise(program, False)
    assert {b.name for b in one.buffers} == {"rows", "row_stage", "result"}
    assert not {b.name for b in one.buffers} & {b.name for b in several.buffers}
    assert not any(f.name in ("arrived", "credit") for f in one.flags)
    assert digest(specialise(several, False)) == digest(several)
    assert len(statements(one)) + len(statements(several)) == len(statements(program))


def test_one_lane_has_no_other_lanes():
    assert not any(f.name in ("staged", "freed") for f in specialise(traced("tide_rs", 1, W=1, k=1), False).flags)


def test_the_digest_follows_what_the_schedule_says():
    assert digest(traced("tide_ag", 8)) == digest(traced("tide_ag", 8))
    assert len({digest(traced("tide_ag", lanes, cast=cast)) for lanes in (4, 8) for cast in (False, True)}) == 4
    assert "object at 0x" not in canonical(traced("tide_rs", 8, W=8, k=4))


def test_the_catalog_is_the_folder():
    assert set(names()) >= {"ring_ag", "tide_ag", "tide_rs"}
    assert path("tide_ag").name == "tide_ag.py"
    with pytest.raises(TidecError, match='there is no schedule "tide"'):
        path("tide")
