"""What the collectives of an installed model were run by, counted."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tidec.inputs.ask import Collective
from tidec.run.held import Held


@dataclass(frozen=True, slots=True)
class CollectiveReport:
    """One collective of one group.

    plan_digest: "" where it has no plan.  by_plan: calls that its plan ran.  stock: calls that stayed stock, by reason.
    bytes_by_plan: an all-gather's landing, or a reduce-scatter's gradients, times the calls by plan.
    """

    collective: Collective
    plan_digest: str
    by_plan: int
    stock: tuple[tuple[str, int], ...]
    bytes_by_plan: int


@dataclass(frozen=True, slots=True)
class GroupReport:
    """One group, by its module's name. reason: why neither collective has a plan, "" where one has."""

    name: str
    collectives: tuple[CollectiveReport, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All groups of a model, in FSDP2's order."""

    groups: tuple[GroupReport, ...]

    @property
    def by_plan(self) -> int:
        """Calls that plans ran."""
        return sum(c.by_plan for g in self.groups for c in g.collectives)

    @property
    def stock(self) -> dict[str, int]:
        """Calls of held groups that stayed stock, by reason."""
        counts: Counter[str] = Counter()
        for group in self.groups:
            for c in group.collectives:
                counts.update(dict(c.stock))
        return dict(counts)

    def __str__(self) -> str:
        lines = []
        for group in self.groups:
            if group.reason:
                lines.append(f"{group.name}: stock, {group.reason}")
                continue
            for c in group.collectives:
                stays = "".join(f"; {count} stock: {why}" for why, count in c.stock)
                plan = f"plan {c.plan_digest[:12]}" if c.plan_digest else "no plan"
                lines.append(f"{group.name}: {c.collective.value.replace('_', '-')}, {plan}, {c.by_plan} calls, {c.bytes_by_plan:,} bytes{stays}")
        return "\n".join(lines)


def group_report(held: Held) -> GroupReport:
    """What a held group did so far."""
    found = []
    for collective, runs in zip(Collective, (held.ring, held.reducer)):
        counts = {why: count for (of, why), count in held.counts.items() if of is collective}
        by_plan = counts.pop(None, 0)
        num_bytes = 0
        if runs is not None:
            layout = runs.plan.layout
            num_bytes = layout.landing_bytes if collective is Collective.ALL_GATHER else sum(p.real_elems for p in layout.params if p.is_trainable) * runs.plan.grad_item_bytes
        found.append(CollectiveReport(collective, "" if runs is None else runs.plan.digest, by_plan, tuple((str(why), count) for why, count in counts.items()), by_plan * num_bytes))
    return GroupReport(held.name, tuple(found))
