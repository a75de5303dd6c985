"""Makes `theorems.json`: every class of programs that is shipped as a theorem, proved for every node count. `python -m tidec.verify.theorems [JOBS]` writes it.

L lanes, W wave width, k rounds' width. A class is a schedule, a lane count and the arguments that its text depends on. What stands in the file is
what `recheck_theorems.py` reads; this is the only place where the prover and the checker meet, and they meet in digests.
"""
from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tidec.inputs.knobs import FULL
from tidec.plan.edges import wait_edges
from tidec.schedule.branch import specialise
from tidec.schedule.catalog import traced
from tidec.schedule.program import Program, jsonable
from tidec.size.solver import classes as chosen_classes
from tidec.verify.axioms import AXIOMS
from tidec.verify.obligation import Verdict
from tidec.verify.prove import prove
from tidec.verify.recheck_theorems import FILE, SCHEMA, canonical, theorem_digest, without_knobs
from tidec.verify.solver import Answers

LANES = (1, 2, 4, 8)
_DEFAULTS = dict(n_part=1, n_out="full", chunks=1, n_stg=2)
_BRANCHES = ((True, "M = 1"), (False, "M >= 2"))


@dataclass(frozen=True, slots=True)
class Class:
    """A schedule, L and its arguments."""

    schedule: str
    lanes: int
    arguments: tuple[tuple[str, object], ...]

    @property
    def program(self) -> Program:
        return traced(self.schedule, self.lanes, **dict(self.arguments))

    def __str__(self) -> str:
        return f"{self.schedule} L={self.lanes} " + " ".join(f"{name}={value}" for name, value in self.arguments)


def classes() -> Iterator[Class]:
    """All classes, each once: the all-gather in all its forms, and the reduce-scatter as the solver chooses it and around the default knobs."""
    yield from {str(one): one for one in (*_around_defaults(), *_chosen())}.values()


def _chosen() -> Iterator[Class]:
    """What the solver can choose where nothing is set, at 1, 2, 4 or 8 lanes; a knob that is at its default is not named."""
    for c in chosen_classes():
        own = dict(W=c.W, k=c.k, n_part=c.n_part, n_out=str(c.n_out) if c.n_out is FULL else c.n_out, chunks=c.chunks, n_stg=c.n_stg)
        yield Class("tide_rs", c.lanes, tuple(sorted((name, x) for name, x in own.items() if x != _DEFAULTS.get(name))))


def _around_defaults() -> Iterator[Class]:
    """For every L in 1, 2, 4, 8: every width and round; at the default width and round, one or two of the other knobs beside their defaults."""
    for lanes in LANES:
        for cast in (False, True):
            for multicast in (False, True):
                for own in ((), (("landings", 1),)):
                    yield Class("tide_ag", lanes, (("cast", cast), *own, ("multicast", multicast)))
        # A round is never wider than a wave, so a larger k is another text of the same program, which is shipped where it is the default.
        knobs = [dict(W=W, k=k) for W in range(1, lanes + 1) for k in range(1, W + 1)]
        own = dict(W=lanes, k=min(4, lanes))
        knobs += [dict(own, n_stg=n_stg) for n_stg in (1, 3, 4)] + [dict(own, n_part=n_part) for n_part in (2, 3, 4)]
        knobs += [dict(own, n_out=n_out) for n_out in (own["k"], 2 * own["k"])]
        knobs += [dict(own, n_part=2, n_out=own["k"]), dict(own, n_part=2, n_stg=4)]
        knobs += [dict(W=W, k=min(4, W), n_part=2) for W in (1, 2, 4) if W < lanes]
        knobs += [dict(own, chunks=chunks) for chunks in (2, 3, 4)] + [dict(own, chunks=stripes, stripes=stripes) for stripes in (2, 4)]
        for one in knobs:
            yield Class("tide_rs", lanes, tuple(sorted(one.items())))


def digest_of(program: Program, *, single_node: bool) -> str:
    """The digest of one branch of a program, as the checker computes it from a stored plan."""
    branch = specialise(program, single_node)
    return theorem_digest(canonical(without_knobs(jsonable(branch))), canonical(jsonable(wait_edges(branch))), single_node=single_node)


Branches = tuple[tuple[str, str, frozenset[str]], ...]


def proved(one: Class, answers: Answers | None = None) -> Branches:
    """(digest, branch, codes of its claims) of both branches of a class. Raises ValueError naming the first claim that is not proved.

    answers: what the solver has said of other classes, used and added to.
    """
    report = prove(one.program, with_premises=True, answers=answers)
    wrong = [c for c in report.claims if c.verdict is not Verdict.PROVED]
    if wrong:
        raise ValueError(f"{one}: {wrong[0].verdict.value} {wrong[0].code} {wrong[0].what}")
    return tuple(
        (digest_of(one.program, single_node=single_node), name, frozenset(c.code for c in report.claims if (c.scope == "M = 1") is single_node))
        for single_node, name in _BRANCHES)


def _proved_family(family: tuple[Class, ...]) -> list[tuple[Class, Branches]]:
    """Classes that have most claims in common, which are decided once."""
    answers = Answers()
    return [(one, proved(one, answers)) for one in family]


def _families(every: list[Class]) -> list[tuple[Class, ...]]:
    """Classes that differ in outbox, passes, chunks and staging only stand together."""
    found: dict[tuple, list[Class]] = {}
    for one in every:
        own = dict(one.arguments)
        found.setdefault((one.schedule, one.lanes, own.get("W"), own.get("k")), []).append(one)
    return [tuple(family) for family in found.values()]


def text_of(found: list[tuple[Class, Branches]]) -> str:
    """The file; a theorem is a line, under the first class that has it."""
    theorems: dict[str, str] = {}
    codes: dict[str, frozenset[str]] = {}
    for one, branches in found:
        collective = "all_gather" if one.schedule == "tide_ag" else "reduce_scatter"
        for digest, branch, own in branches:
            theorems.setdefault(digest, f"{one}, {branch}")
            codes[f"{collective} {branch}"] = codes.get(f"{collective} {branch}", own) & own
    content = {
        "schema": SCHEMA, "assumes": [{"id": a.id, "says": a.says} for a in AXIOMS], "codes": {key: sorted(own) for key, own in codes.items()}, "theorems": theorems,
    }
    return json.dumps(content, sort_keys=True, indent=0, ensure_ascii=True) + "\n"


def main(jobs: int | None) -> int:
    """Prove every class in so many processes (`None` = one a core) and write the file beside this one; nothing is written if one claim is not proved."""
    every = list(classes())
    with ProcessPoolExecutor(jobs) as pool:
        known = dict(pair for family in pool.map(_proved_family, _families(every)) for pair in family)
    found = [(one, known[one]) for one in every]
    (Path(__file__).parent / FILE).write_text(text_of(found), encoding="ascii")
    print(f"{len(every)} classes are theorems: {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else None))
