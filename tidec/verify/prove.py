"""All claims about one program, for every node count: two branches, M = 1 and every M >= 2, each proved once and kept by class."""
from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tidec.index import evaluate, text
from tidec.schedule.branch import specialise
from tidec.schedule.program import Program, digest
from tidec.verify.confirm import confirmed
from tidec.verify.contract import check_contract
from tidec.verify.coverage import check_covers, check_stale
from tidec.verify.families import World
from tidec.verify.judge import Judge, Listener, Stop, nobody
from tidec.verify.messages import explained
from tidec.verify.obligation import Claim, Verdict
from tidec.verify.order import check_flags, check_races
from tidec.verify.outputs import check_outputs
from tidec.verify.placement import check_contents, check_exclusive, check_ranges, check_written
from tidec.verify.seeds import check_seeds
from tidec.verify.solver import RLIMIT, Answers
from tidec.verify.terms import Terms, Values

Check = Callable[[World, Judge], None]
CHECKS: tuple[Check, ...] = (
    check_ranges, check_contract, check_exclusive, check_contents, check_covers, check_written, check_stale, check_seeds, check_outputs, check_flags, check_races,
)
SCHEMA = "tidec.claims/1"


class AnyNodes(Enum):
    """No node count in particular."""

    ANY = "every M"


ANY = AnyNodes.ANY


class Store(Protocol):
    """Where proofs of a class are kept: `get` gives an empty text for what it does not have."""

    def get(self, key: str) -> str: ...

    def put(self, key: str, value: str) -> None: ...


class NoStore:
    """Keeps nothing."""

    def get(self, key: str) -> str:
        return ""

    def put(self, key: str, value: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Report:
    """All findings about a program. seconds: of the solver and of stating what to ask, 0 for what the store knew."""

    claims: tuple[Claim, ...]
    seconds: float
    from_store: bool

    @property
    def verdict(self) -> Verdict:
        """The worst one: refuted, then vacuous, then unknown; proved only if all are."""
        found = {c.verdict for c in self.claims}
        return next((v for v in (Verdict.REFUTED, Verdict.VACUOUS, Verdict.UNKNOWN) if v in found), Verdict.PROVED)

    def counts(self) -> Mapping[str, int]:
        """How many claims have which verdict."""
        return {v.value: sum(c.verdict is v for c in self.claims) for v in Verdict}


def prove(
    program: Program, *, with_premises: bool = False, nodes: int | AnyNodes = ANY, store: Store = NoStore(), first_only: bool = False, rlimit: int = RLIMIT,
    listener: Listener = nobody, answers: Answers | None = None,
) -> Report:
    """Decides every claim of placement and order of a program.

    with_premises: under the program's premises on M (a wave width that does not divide the lanes), else without them.
    nodes: that node count alone, which is how a premise that fails is shown; default every M.
    first_only: stop at the first claim that is not proved. rlimit: solver steps a claim; a claim that needs more is unknown.
    listener: is told of every finding that is decided here, and can have it as SMT-LIB 2 for another solver.
    answers: what the solver has said before, of other programs too; it is used and added to. A claim that another program has word for word is not asked again.
    """
    branches = tuple(specialise(program, single_node) for single_node in (True, False))
    return prove_branches(branches, CHECKS, SCHEMA, with_premises=with_premises, nodes=nodes, store=store, first_only=first_only, rlimit=rlimit, listener=listener,
                          answers=answers)


def prove_branches(
    branches: tuple[Program, Program], checks: tuple[Check, ...], schema: str, *, with_premises: bool, nodes: int | AnyNodes = ANY, store: Store = NoStore(),
    first_only: bool = False, rlimit: int = RLIMIT, listener: Listener = nobody, answers: Answers | None = None,
) -> Report:
    """Decides what the checks claim of the branches M = 1 and M >= 2 of one program. schema: of the claims, part of the key by which they are kept."""
    pinned = isinstance(nodes, int)
    claims: list[Claim] = []
    seconds = 0.0
    known = True
    for single_node, branch in zip((True, False), branches):
        if pinned and single_node is not (nodes == 1):
            continue
        premises = branch.premises if with_premises else ()
        scope = f"M = {nodes}" if pinned else _scope(single_node, premises)
        key = f"{schema} {digest(branch)} {scope}"
        found = _from_store(store.get(key), scope)
        if not found:
            known = False
            at = nodes if pinned else 1 if single_node else 0
            found, spent = _decide(branch, at, premises, scope, first_only, rlimit, listener, answers, checks)
            seconds += spent
            if all(c.verdict is Verdict.PROVED for c in found):
                store.put(key, json.dumps([[c.code, c.what] for c in found], separators=(",", ":")))
        claims += found
        if first_only and any(c.verdict is not Verdict.PROVED for c in found):
            break
    return Report(tuple(claims), seconds, known)


def prove_branch(branch: Program, *, single_node: bool, checks: tuple[Check, ...] = CHECKS) -> Report:
    """Decides what the checks claim of one branch of a program, as a stored plan has it, under its premises on M; nothing is kept."""
    claims, seconds = _decide(branch, int(single_node), branch.premises, _scope(single_node, branch.premises), False, RLIMIT, nobody, None, checks)
    return Report(tuple(claims), seconds, False)


def _scope(single_node: bool, premises: tuple) -> str:
    return "M = 1" if single_node else "every M >= 2" + "".join(f" with {text(p)}" for p in premises)


def premises_hold(program: Program, nodes: int) -> bool:
    """The program's premises hold for that node count."""
    return all(evaluate(p, {"M": nodes}) for p in specialise(program, nodes == 1).premises if not isinstance(p, bool))


def _from_store(kept: str, scope: str) -> list[Claim]:
    return [Claim(code, what, scope, Verdict.PROVED, 0.0) for code, what in json.loads(kept)] if kept else []


def _decide(
    branch: Program, nodes: int, premises: tuple, scope: str, first_only: bool, rlimit: int, listener: Listener, answers: Answers | None,
    checks: tuple[Check, ...],
) -> tuple[list[Claim], float]:
    terms = Terms()
    m = nodes or terms.var("M")
    world = World(branch, terms, m)
    base = (terms.le(2, m), *(terms.read(p, Values({"M": m})) for p in premises))
    judge = Judge(terms, m, () if nodes else base, first_only, rlimit, listener, may_idle=nodes > 1, answers=answers)
    try:
        for check in checks:
            check(world, judge)
    except Stop:
        pass
    return [explained(confirmed(f, branch), branch, scope) for f in judge.findings], judge.seconds
