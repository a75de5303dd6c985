"""Claims about one plan alone: its node count suits the schedule, and its rows, sub-slices and regions tile what they should."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidec.errors import Diagnostic, TidecError
from tidec.index import text
from tidec.inputs.ask import Collective
from tidec.plan.arena import check_arena
from tidec.plan.layout import check_layout
from tidec.verify.obligation import Claim, Verdict

if TYPE_CHECKING:
    from tidec.plan.ir import Plan

SCOPE = "this plan"


def plan_claims(plan: Plan) -> tuple[Claim, ...]:
    """V402 for the landing or the packed output and for the arena, P013 for the premises on M, decided in plain Python on the plan's own numbers."""
    slices = plan.slices if plan.collective is Collective.REDUCE_SCATTER else None
    rows = "rows tile the landing" if slices is None else "rows tile the landing, sub-slices the packed output"
    return (
        _decided("V402", rows, lambda: check_layout(plan.layout, slices)),
        _decided("V402", "regions of the arena are aligned and disjoint", lambda: check_arena(plan.arena)),
        _decided("P013", f"M = {plan.nodes} is a node count that the schedule's premises admit", lambda: _check_premises(plan)),
    )


def premise_refusal(plan: Plan) -> Diagnostic:
    """P013 of a plan whose node count the schedule's premises do not admit."""
    needed = " and ".join(text(p) for p in plan.program.premises)
    return Diagnostic("P013", f"the plan is right only where {needed}, and M = {plan.nodes} is not such a node count",
                      help=f"set W to one that divides {plan.lanes}: it is right for every node count")


def _check_premises(plan: Plan) -> None:
    if not plan.premises_hold:
        raise TidecError(premise_refusal(plan))


def _decided(code: str, what: str, check: Callable[[], None]) -> Claim:
    try:
        check()
    except TidecError as wrong:
        return Claim(code, what, SCOPE, Verdict.REFUTED, 0.0, diagnostic=wrong.diagnostics[0])
    return Claim(code, what, SCOPE, Verdict.PROVED, 0.0)
