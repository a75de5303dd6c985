"""Asks the solver and keeps what it said: every obligation becomes a finding, none is lost."""
from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from tidec.verify import solver
from tidec.verify.obligation import Obligation, Outcome, Verdict
from tidec.verify.terms import Bool, Int, Terms, Values


# Solver steps that an obligation with residues gets before it is taken apart, times its cases and the largest modulus: as many claims have as many cases each.
FIRST_TRY = 4_687         # 300,000 at eight lanes, all there are at 72; 1.2 million where rounds and passes make 64 cases


class Stop(Exception):
    """The first finding that is not proved, where one is enough."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An obligation and what came of it."""

    obligation: Obligation
    outcome: Outcome


# Is told of every finding: its code, what it is about, the verdict, and a function that gives it as SMT-LIB 2 (unsatisfiable = proved).
Listener = Callable[[str, str, Verdict, Callable[[], str]], None]


def nobody(code: str, what: str, verdict: Verdict, script: Callable[[], str]) -> None:
    """The listener that does not listen."""


class Judge:
    """Decides obligations of one branch and collects the findings. first_only: stop at the first one that is not proved.

    may_idle: at one node count an op that never runs is no mistake, so nothing is asked of assumptions.
    answers: what the solver has said before, of this branch or of others.
    """

    def __init__(self, terms: Terms, nodes: Int, base: tuple[Bool, ...], first_only: bool = False, rlimit: int = solver.RLIMIT, listener: Listener = nobody,
                 may_idle: bool = False, answers: solver.Answers | None = None):
        self.listener = listener
        self.answers = answers or solver.Answers()
        self.may_idle = may_idle
        self.terms, self.nodes, self.base, self.rlimit = terms, nodes, base, rlimit
        self.first_only = first_only
        self.findings: list[Finding] = []
        self._possible: dict[frozenset[Bool], Verdict] = {}
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the judge began: stating and solving."""
        return time.perf_counter() - self._start

    def _full(self, o: Obligation) -> Obligation:
        return replace(o, assume=(*self.base, *o.assume))

    def _decide(self, o: Obligation) -> Outcome:
        full = self._full(o)
        if not o.residues:
            return solver.decide(self.terms, full, self.nodes, self.rlimit, self.answers)
        moduli = [m for _, m in o.residues]
        steps = FIRST_TRY * math.prod(moduli) * max(moduli)
        whole = solver.decide(self.terms, full, self.nodes, min(self.rlimit, steps), self.answers)
        return whole if whole.verdict is not Verdict.UNKNOWN else self._by_residues(full, whole)

    def _by_residues(self, o: Obligation, spent: Outcome) -> Outcome:
        """The obligation once for every residue of its hard unknowns, where remainders of them are constants."""
        steps, seconds = spent.steps, spent.seconds
        for rests in itertools.product(*(range(m) for _, m in o.residues)):
            known = {x: self.terms.add(rest, self.terms.var(f"{x.args[0]}/{m}"), m) for (x, m), rest in zip(o.residues, rests)}
            case = replace(
                o, assume=tuple(self.terms.replace(a, known) for a in o.assume), goal=self.terms.replace(o.goal, known),
                instances=tuple(replace(i, values=Values({k: self.terms.replace(x, known) for k, x in i.values.at.items()})) for i in o.instances))
            found = solver.decide(self.terms, case, self.nodes, self.rlimit, self.answers)
            steps, seconds = steps + found.steps, seconds + found.seconds
            if found.verdict is not Verdict.PROVED:
                return replace(found, steps=steps, seconds=seconds)
        return Outcome(Verdict.PROVED, None, steps, seconds)

    def possible(self, assume: Iterable[Bool]) -> Verdict:
        """PROVED if the assumption has a model under the premises, VACUOUS if it has none."""
        every = self.terms.every(assume)
        key = frozenset({every})
        if key not in self._possible:
            self._possible[key] = solver.satisfiable(self.terms, (*self.base, every), self.rlimit, self.answers)
        return self._possible[key]

    def never(self, assume: Iterable[Bool]) -> bool:
        """The assumption has no model for certain."""
        return self.possible(assume) is Verdict.VACUOUS

    def claim(self, obligation: Obligation) -> bool:
        """Decides it and keeps the finding; True if proved, and not by an assumption that nothing meets."""
        outcome = self._decide(obligation)
        if outcome.verdict is Verdict.PROVED and not (obligation.may_be_empty or self.may_idle) and obligation.goal is not True:
            possible = self.possible(obligation.assume)
            if possible is not Verdict.PROVED:
                outcome = Outcome(possible if possible is Verdict.VACUOUS else Verdict.UNKNOWN, None, outcome.steps, outcome.seconds)
        return self._keep(obligation, outcome)

    def holds(self, obligation: Obligation) -> bool:
        """Decides it without keeping anything."""
        return self.terms.every(obligation.assume) is False or self._quick(obligation) is Verdict.PROVED

    def _quick(self, o: Obligation) -> Verdict:
        if o.goal is True:
            return Verdict.PROVED
        if o.goal is False and self.possible(o.assume) is Verdict.PROVED:
            return Verdict.REFUTED
        opposite = (*self.base, *o.assume, self.terms.no(o.goal))
        found = solver.satisfiable(self.terms, opposite, self.rlimit, self.answers)
        return Verdict.PROVED if found is Verdict.VACUOUS else Verdict.REFUTED if found is Verdict.PROVED else Verdict.UNKNOWN

    def accept(self, obligation: Obligation) -> None:
        """Keeps a finding that `holds` has proved."""
        self._keep(obligation, Outcome(Verdict.PROVED, None, 0, 0.0))

    def empty(self, code: str, what: str, assume: Iterable[Bool]) -> None:
        """Keeps that two accesses never meet, which `never` has proved."""
        self._keep(Obligation(code, f"{what}: never in one block", tuple(assume), False, (), True), Outcome(Verdict.PROVED, None, 0, 0.0))

    def _keep(self, obligation: Obligation, outcome: Outcome) -> bool:
        self.findings.append(Finding(obligation, outcome))
        self.listener(obligation.code, obligation.what, outcome.verdict, lambda: solver.script(self.terms, self._full(obligation)))
        good = outcome.verdict is Verdict.PROVED
        if not good and self.first_only:
            raise Stop
        return good
