"""Claims about one plan or one model alone: a node count suits the schedule, rows, sub-slices and regions tile what they should, and no two living groups
share a landing.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidec.errors import Diagnostic, TidecError
from tidec.index import text
from tidec.inputs.ask import Collective, Mode
from tidec.inputs.document import quoted
from tidec.inputs.order import Moment
from tidec.plan.arena import check_arena
from tidec.plan.layout import check_layout
from tidec.plan.model_arena import ModelArena, Need, Use, check_model_arena
from tidec.verify.obligation import Claim, Verdict

if TYPE_CHECKING:
    from tidec.plan.ir import Plan

SCOPE, MODEL_SCOPE = "this plan", "this model"


def plan_claims(plan: Plan) -> tuple[Claim, ...]:
    """V402 for the landing or the packed output and for the arena, P013 for the premises on M, decided in plain Python on the plan's own numbers."""
    slices = plan.slices if plan.collective is Collective.REDUCE_SCATTER else None
    rows = "rows tile the landing" if slices is None else "rows tile the landing, sub-slices the packed output"
    return (
        _decided("V402", rows, SCOPE, lambda: check_layout(plan.layout, slices)),
        _decided("V402", "regions of the arena are aligned and disjoint", SCOPE, lambda: check_arena(plan.arena)),
        _decided("P013", f"M = {plan.nodes} is a node count that the schedule's premises admit", SCOPE, lambda: _check_premises(plan)),
    )


def model_claims(arena: ModelArena, needs: Sequence[Need]) -> tuple[Claim, ...]:
    """V402 for the arena of a model: its regions, the room of every group in them, and the lifetimes in its landings.

    needs: one an entry of the group file. Lifetimes are read off the order here by themselves, not by what assigned the landings.
    """
    return (
        _decided("V402", "regions of the model's arena are aligned and disjoint", MODEL_SCOPE, lambda: check_model_arena(arena)),
        _decided("V402", "every group has room in one region for each of its needs", MODEL_SCOPE, lambda: _check_room(arena, needs)),
        _decided("V402", "two groups that live at the same time never share a landing", MODEL_SCOPE, lambda: _check_lifetimes(arena)),
    )


def premise_refusal(plan: Plan) -> Diagnostic:
    """P013 of a plan whose node count the schedule's premises do not admit."""
    needed = " and ".join(text(p) for p in plan.program.premises)
    return Diagnostic("P013", f"the plan is right only where {needed}, and M = {plan.nodes} is not such a node count",
                      help=f"set W to one that divides {plan.lanes}: it is right for every node count")


def _check_premises(plan: Plan) -> None:
    if not plan.premises_hold:
        raise TidecError(premise_refusal(plan))


def _check_room(arena: ModelArena, needs: Sequence[Need]) -> None:
    rooms: dict[tuple[Use, int], list[int]] = {}
    for region in arena.regions:
        for g in region.groups:
            rooms.setdefault((region.use, g), []).append(region.bytes)
    for g, copy in enumerate(arena.order.groups):
        need = needs[copy.entry]
        wanted = {Use.LANDING: need.landing_bytes, Use.SHARD: need.shard_bytes, Use.GATHER_STAGE: need.gather_stage_bytes, Use.REDUCE_STAGE: need.reduce_stage_bytes}
        for use, size in wanted.items():
            found = rooms.get((use, g), [])
            if len(found) != (size > 0) or any(room < size for room in found):
                raise _unsafe(f"group {quoted(copy.name)} has no room for its {use.value}", f"it needs {size:,} bytes in one region, and has {found}")


def _check_lifetimes(arena: ModelArena) -> None:
    order, names = arena.order, [c.name for c in arena.order.groups]
    moments: list[list[tuple[int, Moment]]] = [[] for _ in order.groups]
    for at, event in enumerate(order.events):
        moments[event.group].append((at, event.moment))
    landings = [r for r in arena.regions if r.use is Use.LANDING]
    landed = {g for region in landings for g in region.groups}
    gathers = [e.group for e in order.events if e.moment is Moment.UNSHARD and e.group in landed]
    for region in landings:
        lives = sorted((*life, g) for g in region.groups for life in _lifetimes(moments[g], len(order.events), arena.mode))
        for (_, end, a), (start, _, b) in zip(lives, lives[1:]):
            if start < end:
                raise _unsafe(f'groups {quoted(names[a])} and {quoted(names[b])} live in region "{region.name}" at the same time',
                              f"at event {start} of the order the first is still in use")
        here = set(region.groups)
        for at, g in enumerate(gathers):
            for other in gathers[at + 1 : at + 1 + order.ahead]:
                if g != other and g in here and other in here:
                    raise _unsafe(f'groups {quoted(names[g])} and {quoted(names[other])} are gathered one soon after the other into region "{region.name}"',
                                  f"{order.ahead} all-gathers may run ahead")


def _lifetimes(moments: Sequence[tuple[int, Moment]], num_events: int, mode: Mode) -> list[tuple[int, int]]:
    """When a group's landing is in use, as half-open ranges of events; one that is in use at the end is so across steps. moments: the group's own events."""
    lives = []
    for i, (at, moment) in enumerate(moments):
        if moment is not Moment.UNSHARD:
            continue
        reshard = next((k for k in range(i, len(moments)) if moments[k][1] is Moment.RESHARD), None)
        if reshard is None:
            return [(-1, num_events + 1)]
        after = next((k for k in range(reshard, len(moments)) if moments[k][1] in (Moment.UNSHARD, Moment.REDUCE)), None)
        end = moments[reshard][0]
        if mode is Mode.SLOT_REUSE and after is not None and moments[after][1] is Moment.REDUCE:
            end = next(t for t, m in moments[after:] if m is Moment.READ)
        lives.append((at, end))
    return lives


def _unsafe(sentence: str, reason: str) -> TidecError:
    return TidecError(Diagnostic("V402", sentence, reason=reason, help="report this model: its arena must never be run"))


def _decided(code: str, what: str, scope: str, check: Callable[[], None]) -> Claim:
    try:
        check()
    except TidecError as wrong:
        return Claim(code, what, scope, Verdict.REFUTED, 0.0, diagnostic=wrong.diagnostics[0])
    return Claim(code, what, scope, Verdict.PROVED, 0.0)
