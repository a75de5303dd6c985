"""The only door to z3: is `assume implies goal` true for all integers?

Every text gets a context of its own and a budget in solver steps, so that verdicts do not depend on the machine or on what was asked before; so a text
that was answered within a budget need not be asked again. z3 is asked without names; `script` gives the claim with them.
"""
from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable

import z3

from tidec.verify.obligation import Example, Instance, Obligation, Outcome, Verdict
from tidec.verify.smtlib import smt2, with_powers
from tidec.verify.terms import Bool, Form, Term, Terms

RLIMIT = 20_000_000        # solver steps an obligation; the hardest shipped one takes about a tenth
TIMEOUT_MS = 60_000        # a safety net only: a verdict never depends on it where RLIMIT is reached first
SMALL_M = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17, 24, 33, 40, 64, 128, 1024)


def version() -> str:
    """The version of the solver, part of every key of a stored proof."""
    return z3.get_version_string()


def _solver(context: z3.Context, rlimit: int) -> z3.Solver:
    solver = z3.SimpleSolver(ctx=context)
    solver.set("rlimit", rlimit)
    solver.set("timeout", TIMEOUT_MS)
    solver.set("ctrl_c", False)        # an interrupt is Python's, never an answer of the solver
    return solver


def script(terms: Terms, obligation: Obligation, extra: tuple[Bool, ...] = ()) -> str:
    """The obligation as SMT-LIB 2: unsatisfiable means proved."""
    asserted = [*obligation.assume, *extra, terms.no(obligation.goal)]
    return smt2([*asserted, *with_powers(terms, asserted)])


class Answers:
    """What the solver said of a text within a budget: the same text is not asked twice, whatever claim it comes from."""

    def __init__(self) -> None:
        self._said: dict[bytes, tuple[Verdict, int]] = {}

    def of(self, text: str, rlimit: int) -> tuple[Verdict, int]:
        """PROVED if the text has a model, VACUOUS if it has none, else UNKNOWN; and the steps that it took."""
        key = hashlib.sha256(f"{rlimit} {text}".encode()).digest()
        if key not in self._said:
            solver = _solver(z3.Context(), rlimit)
            solver.from_string(text)
            answer = solver.check()
            verdict = Verdict.PROVED if answer == z3.sat else Verdict.VACUOUS if answer == z3.unsat else Verdict.UNKNOWN
            statistics = solver.statistics()
            self._said[key] = verdict, int(statistics.get_key_value("rlimit count")) if "rlimit count" in statistics.keys() else 0
        return self._said[key]


def model_of(terms: Terms, asserted: Iterable[Bool], rlimit: int, answers: Answers) -> tuple[Verdict, int]:
    """PROVED if the conditions have a model, VACUOUS if they have none, else UNKNOWN; and the steps that it took."""
    facts = list(dict.fromkeys(a for a in asserted if a is not True))
    if any(a is False for a in facts):
        return Verdict.VACUOUS, 0
    if not facts:
        return Verdict.PROVED, 0
    return answers.of(smt2([*facts, *with_powers(terms, facts)], is_anonymous=True), rlimit)


def satisfiable(terms: Terms, asserted: Iterable[Bool], rlimit: int = RLIMIT, answers: Answers | None = None) -> Verdict:
    """PROVED if the conditions have a model, VACUOUS if they have none, else UNKNOWN. answers: what was asked before, kept and used."""
    return model_of(terms, asserted, rlimit, answers or Answers())[0]


def decide(terms: Terms, obligation: Obligation, nodes: Term | int, rlimit: int = RLIMIT, answers: Answers | None = None) -> Outcome:
    """Decides one obligation; refuted ones come with the example of the smallest M, its indices as small as they go. answers: as in `satisfiable`."""
    start = time.perf_counter()
    found, steps = model_of(terms, (*obligation.assume, terms.no(obligation.goal)), rlimit, answers or Answers())
    if found is Verdict.VACUOUS:
        return Outcome(Verdict.PROVED, None, steps, time.perf_counter() - start)
    example = _smallest(terms, obligation, nodes, rlimit) if found is Verdict.PROVED else None
    # A refutation is one of the claim as it was stated: without an example of that, the solver gave up.
    return Outcome(Verdict.REFUTED if example else Verdict.UNKNOWN, example, steps, time.perf_counter() - start)


def _smallest(terms: Terms, obligation: Obligation, nodes: Term | int, rlimit: int) -> Example | None:
    """The model with the smallest M; then every shown index takes the smallest of 0, 1, 2 that still works, one after another."""
    fixed: list[Bool] = []

    def holds(*extra: Bool) -> z3.ModelRef | None:
        solver = _solver(z3.Context(), rlimit)
        solver.from_string(script(terms, obligation, (*fixed, *extra)))
        return solver.model() if solver.check() == z3.sat else None

    model = holds()
    if isinstance(nodes, Term):
        for m in SMALL_M:
            if (found := holds(terms.le(nodes, m))) is not None:
                fixed.append(terms.eq(nodes, _value(terms, found, nodes)))
                model = found
                break
    for instance in obligation.instances:
        for name in ("e", "n", "j", *instance.names):
            index = instance.values[name]
            if not isinstance(index, Term):
                continue
            for small in (0, 1, 2):
                if (found := holds(terms.eq(index, small))) is not None:
                    fixed.append(terms.eq(index, small))
                    model = found
                    break
    if model is None:
        return None
    return Example(
        _value(terms, model, nodes),
        tuple((i.role, i.op_id, {x: _value(terms, model, i.values[x]) for x in ("e", "n", "j", *i.names)}) for i in obligation.instances),
    )


def _value(terms: Terms, model: z3.ModelRef, index: Term | int) -> int:
    """The value of a term in a model; unknowns that it leaves open are 0."""
    if not isinstance(index, Term):
        return index
    known = {d.name(): model[d] for d in model.decls() if d.arity() == 0}
    return evaluate_term(index, {name: v.as_long() for name, v in known.items() if z3.is_int_value(v)})


def evaluate_term(term: object, values: dict[str, int]) -> int | bool:
    """A term over ints; unknowns without a value are 0."""
    if not isinstance(term, Term):
        return term
    args = term.args

    def read(x: object) -> int | bool:
        return evaluate_term(x, values)

    match term.form:
        case Form.VAR:
            return values.get(args[0], 0)
        case Form.SUM:
            return args[0] + sum(f * read(t) for t, f in args[1])
        case Form.DIV:
            return read(args[0]) // args[1]
        case Form.MOD:
            return read(args[0]) % args[1]
        case Form.ITE:
            return read(args[1]) if read(args[0]) else read(args[2])
        case Form.TOP2:
            x = read(args[0])
            return 1 << (x.bit_length() - 1) if x > 0 else 0
        case Form.LE0:
            return read(args[0]) <= 0
        case Form.EQ0:
            return read(args[0]) == 0
        case Form.POW2:
            x = read(args[0])
            return x > 0 and x & (x - 1) == 0
        case Form.AND:
            return all(map(read, args))
        case Form.OR:
            return any(map(read, args))
    return not read(args[0])


__all__ = ["Instance", "RLIMIT", "decide", "evaluate_term", "satisfiable", "script", "version"]
