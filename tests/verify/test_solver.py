"""Proved, refuted, unknown and vacuous are told apart, and examples are small."""
import z3

from tidec.verify.judge import Judge
from tidec.verify.obligation import Instance, Obligation, Verdict
from tidec.verify.solver import Answers, decide, satisfiable
from tidec.verify.terms import Terms, Values


def test_a_true_claim_is_proved():
    t = Terms()
    x = t.var("x")
    assert decide(t, Obligation("V102", "", (t.le(1, x),), t.le(0, x)), 4).verdict is Verdict.PROVED


def test_a_false_claim_is_refuted_with_the_smallest_node_count():
    t = Terms()
    m, c = t.var("M"), t.var("a.c")
    point = Values({"M": m, "e": 0, "n": 0, "j": 0, "c": c})
    o = Obligation("V104", "", (t.le(2, m), t.le(0, c), t.lt(c, m)), t.lt(c, 7), (Instance("first", 3, point, ("c",)),))
    found = decide(t, o, m)
    assert found.verdict is Verdict.REFUTED
    assert found.example.nodes == 8
    assert found.example.instances == (("first", 3, {"e": 0, "n": 0, "j": 0, "c": 7}),)


def test_indices_of_an_example_are_as_small_as_they_go():
    t = Terms()
    m, c, e = t.var("M"), t.var("a.c"), t.var("a.e")
    point = Values({"M": m, "e": e, "n": 0, "j": 0, "c": c})
    found = decide(t, Obligation("V104", "", (t.le(2, m), t.le(2, c)), False, (Instance("", 0, point, ("c",)),)), m)
    assert found.example.nodes == 2
    assert found.example.instances[0][2] == {"e": 0, "n": 0, "j": 0, "c": 2}


def test_a_budget_that_is_too_small_gives_unknown_never_proved():
    t = Terms()
    x, y, z = t.var("x"), t.var("y"), t.var("z")
    hard = t.equal((t.mod(t.add(x, t.scale(y, 3)), 7), t.mod(t.add(y, t.scale(z, 5)), 11)), (3, 4))
    goal = t.no(t.eq(t.mod(t.add(t.add(x, y), z), 13), 5))
    assert decide(t, Obligation("V104", "", (hard,), goal), 4, rlimit=30).verdict is Verdict.UNKNOWN


def test_contradicting_assumptions_are_vacuous_unless_they_may_be_empty():
    t = Terms()
    x = t.var("x")
    for may_be_empty, verdict in ((False, Verdict.VACUOUS), (True, Verdict.PROVED)):
        judge = Judge(t, 4, ())
        judge.claim(Obligation("V105", "", (t.le(x, 0), t.le(1, t.scale(x, 2))), t.eq(x, 9), may_be_empty=may_be_empty))
        assert judge.findings[0].outcome.verdict is verdict


def test_satisfiable_says_vacuous_where_there_is_no_model():
    t = Terms()
    x = t.var("x")
    assert satisfiable(t, (t.eq(t.scale(x, 2), 3),)) is Verdict.VACUOUS
    assert satisfiable(t, (t.eq(t.scale(x, 2), 4),)) is Verdict.PROVED


def test_the_same_claim_takes_the_same_steps_every_time():
    def steps():
        t = Terms()
        m, c, d = t.var("M"), t.var("c"), t.var("d")
        same = t.eq(t.mod(c, 8), t.mod(d, 8))
        return decide(t, Obligation("V104", "", (t.le(1, c), t.lt(c, d), t.le(d, t.add(c, 7)), t.le(d, m), same), False), m).steps

    assert steps() == steps() > 0


def test_a_claim_that_is_too_hard_is_decided_residue_by_residue(monkeypatch):
    monkeypatch.setattr("tidec.verify.judge.FIRST_TRY", 1)
    t = Terms()
    m, w, c = t.var("M"), t.var("z.w"), t.var("z.c")
    point = Values({"M": m, "e": 0, "n": 0, "j": 0, "w": w, "c": c})
    first = t.add(1, w, 5)
    holds = t.equal((t.mod(t.add(first, 3), 8),), (t.mod(t.add(t.scale(w, 5), 4), 8),))
    fails = t.lt(t.mod(t.add(t.scale(first, 3), c), 8), 7)
    judge = Judge(t, m, (t.le(2, m), t.le(0, w), t.equal((c,), (t.mod(t.scale(w, 2), 8),))))
    for goal, verdict in ((t.every((holds, t.le(0, t.mod(c, 8)))), Verdict.PROVED), (fails, Verdict.REFUTED)):
        judge.claim(Obligation("V107", "", (), goal, (Instance("skipped", 0, point, ("w", "c")),), may_be_empty=True, residues=((w, 8),)))
        assert judge.findings[-1].outcome.verdict is verdict
    indices = judge.findings[-1].outcome.example.instances[0][2]
    assert (3 * (5 * indices["w"] + 1) + indices["c"]) % 8 == 7 and indices["c"] == 2 * indices["w"] % 8


def test_a_claim_in_other_names_is_asked_once_and_one_in_other_numbers_again(monkeypatch):
    answers, asked = Answers(), []
    check = z3.Solver.check
    monkeypatch.setattr(z3.Solver, "check", lambda self: asked.append(1) or check(self))

    def found(name: str, least: int) -> Verdict:
        t = Terms()
        c, d = t.var(name), t.var(f"{name}.d")
        assume = (t.le(least, c), t.le(c, 2), t.le(3, d), t.le(d, 8), t.eq(t.mod(c, 8), t.mod(t.scale(d, 3), 8)))
        return decide(t, Obligation("V104", "", assume, t.lt(0, c)), 4, answers=answers).verdict

    assert found("a", 1) is found("b", 1) is Verdict.PROVED and len(asked) == 1
    assert found("b", 0) is Verdict.REFUTED and len(asked) > 1


def test_an_answer_within_one_budget_is_none_within_another():
    answers = Answers()
    text = "(declare-const x Int) (declare-const y Int) (assert (= (+ (mod (+ x y) 7) (mod (* 3 y) 11)) 5)) (assert (< 3 (mod x 5)))"
    assert answers.of(text, 1)[0] is Verdict.UNKNOWN
    assert answers.of(text, 1_000_000)[0] is Verdict.PROVED
