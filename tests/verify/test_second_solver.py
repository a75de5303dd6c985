"""A second solver, on the claims as SMT-LIB text: the same verdicts."""
import cvc5
import pytest

from tidec.schedule.catalog import traced
from tidec.verify.obligation import Verdict
from tidec.verify.prove import prove

CLASSES = [("tide_ag", 8, {"cast": True}), ("tide_rs", 8, {"W": 4, "k": 2, "n_part": 2}), ("tide_rs", 4, {"W": 4, "k": 2, "n_out": 4})]
QUICK = [("ring_ag", 4, {}), ("tide_ag", 4, {})]


def answer(script: str) -> str:
    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("tlimit-per", "60000")
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, f"(set-logic ALL)\n{script}\n(check-sat)\n", "claim")
    symbols = parser.getSymbolManager()
    said = ""
    while not (command := parser.nextCommand()).isNull():
        said += str(command.invoke(solver, symbols))
    return said.strip()


def agree(name: str, lanes: int, knobs: dict) -> int:
    asked = []
    prove(traced(name, lanes, **knobs), listener=lambda code, what, verdict, script: asked.append((code, what, verdict, script())))
    for code, what, verdict, script in asked:
        assert (verdict, answer(script)) in ((Verdict.PROVED, "unsat"), (Verdict.REFUTED, "sat")), f"{name} {lanes} {knobs}: {code} {what}"
    return len(asked)


@pytest.mark.parametrize(("name", "lanes", "knobs"), QUICK)
def test_a_second_solver_agrees_on_small_classes(name, lanes, knobs):
    assert agree(name, lanes, knobs) > 70


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lanes", "knobs"), CLASSES)
def test_a_second_solver_agrees_on_three_classes(name, lanes, knobs):
    assert agree(name, lanes, knobs) > 250


def test_a_second_solver_refutes_width_3_too():
    asked = []
    prove(traced("tide_rs", 8, W=3, k=3), first_only=True, listener=lambda code, what, verdict, script: asked.append((verdict, script())))
    assert asked[-1][0] is Verdict.REFUTED
    assert answer(asked[-1][1]) == "sat"
