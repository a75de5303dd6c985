"""What is asked of the solver, and what came of it."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidec.errors import Diagnostic, Spot
from tidec.schedule.program import Event
from tidec.verify.terms import Bool, Term, Values


class Verdict(Enum):
    """Refuted, unknown and vacuous are different words; only the first is good."""

    PROVED = "proved"
    REFUTED = "refuted"
    UNKNOWN = "unknown"
    VACUOUS = "vacuous"


@dataclass(frozen=True, slots=True)
class Instance:
    """One op of a family in an obligation: its part in the claim, its id, its index values (the call, n, j, the loops), and which event is meant."""

    role: str
    op_id: int
    values: Values
    names: tuple[str, ...]
    event: Event = Event.END


@dataclass(frozen=True, slots=True)
class Obligation:
    """`assume` implies `goal`, for all values of the unknowns.

    residues: unknowns and moduli; if the claim is too hard as it stands, it is decided once for every residue of each.
    may_be_empty: the assumption says that two families meet, and they may never do; else an assumption without a model is V902.
    """

    code: str
    what: str
    assume: tuple[Bool, ...]
    goal: Bool
    instances: tuple[Instance, ...] = ()
    may_be_empty: bool = False
    residues: tuple[tuple[Term, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """A counterexample: the node count, and for every instance its indices and the words of its op."""

    nodes: int
    instances: tuple[tuple[str, int, Mapping[str, int]], ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the solver said, after how many steps of its own, and the smallest example where it refuted."""

    verdict: Verdict
    example: Example | None
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Claim:
    """One finding: the code, what it is about, the scope (`every M`, or of which M), the verdict, and where refuted the example and its message."""

    code: str
    what: str
    scope: str
    verdict: Verdict
    seconds: float
    example: Mapping[str, int] = field(default_factory=dict)
    spots: tuple[Spot, ...] = ()
    diagnostic: Diagnostic | None = None
