"""What the checker of bundles answers, and how it says no."""
from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidec.errors import Diagnostic, TidecError


class Order(Enum):
    """By what the order of a plan's ops was accepted."""

    THEOREM = "theorem"    # its families are among those that were proved for every node count
    GRAPH = "graph"        # its families were unfolded on a small topology and every pair of accesses looked up
    PROOF = "proof"        # it is no theorem and too large to unfold: its claims are decided with the solver, after this


@dataclass(frozen=True, slots=True)
class Checked:
    """One thing that was checked, and of which file; "" = of the whole bundle."""

    file: str
    what: str


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What was found of one plan. order: why its order is accepted; where by the graph, `nodes` are the node counts that were unfolded."""

    stem: str
    order: Order
    nodes: tuple[int, ...]
    checked: tuple[Checked, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """A bundle that was accepted. verdict: always `proved`; anything else is an error with its code.

    checked: what was recomputed or compared.  trusted: what was taken at its word, beside the axioms.
    """

    path: str
    verdict: str
    plans: tuple[PlanReport, ...]
    checked: tuple[Checked, ...]
    trusted: tuple[Checked, ...]

    @property
    def order_by(self) -> Order:
        """`proof` if one plan needed it, else `graph` if one did."""
        return next((o for o in (Order.PROOF, Order.GRAPH) if any(p.order is o for p in self.plans)), Order.THEOREM)


def tampered(file: str, reason: str) -> TidecError:
    """C001: a file is not what was proved."""
    return TidecError(Diagnostic("C001", f"{file} is not what was proved", reason=reason, help="compile it again, or copy the bundle from where it was made"))


def refuted(code: str, file: str, sentence: str, *, reason: str = "", example: tuple[str, ...] = ()) -> TidecError:
    """A claim that does not hold of the plan in this file, though every digest fits."""
    return TidecError(Diagnostic(code, f"{file}: {sentence}", reason=reason, example=example, help="never run it; compile the group again"))


def unknown(file: str, reason: str) -> TidecError:
    """V901: too large for the checker, or nothing that it knows."""
    return TidecError(Diagnostic("V901", f"{file} cannot be re-checked without the solver", reason=reason,
                                 help="tidec verify --prove decides it with z3 (the extra tidec[compile])"))
