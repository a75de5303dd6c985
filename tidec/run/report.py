"""What the collectives of an installed model were run by, counted."""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tidec.inputs.ask import Collective
from tidec.run.count import Tally
from tidec.run.held import Held


@dataclass(frozen=True, slots=True)
class CollectiveReport:
    """One collective of one group.

    plan_digest: "" where it has no plan.  by_plan: calls that its plan ran.  stock: calls that stayed stock, by reason.
    over: those of by_plan of which all is done; a landing that is in use is not.  done: what this rank carried out in them, as it counted while it did it.
    planned: what their plans say.
    """

    collective: Collective
    plan_digest: str
    by_plan: int
    stock: tuple[tuple[str, int], ...]
    over: int
    done: Tally
    planned: Tally

    @property
    def is_as_planned(self) -> bool:
        """Whether what was carried out is what the plans say, in number and bytes of every kind of op."""
        return self.done == self.planned


@dataclass(frozen=True, slots=True)
class GroupReport:
    """One group, by its module's name. reason: why neither collective has a plan, "" where one has.  is_later: it was sharded after install."""

    name: str
    collectives: tuple[CollectiveReport, ...]
    reason: str = ""
    is_later: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """All groups of a model, in FSDP2's order. arena_bytes: what their plans hold of this rank's memory."""

    groups: tuple[GroupReport, ...]
    arena_bytes: int = 0

    @property
    def by_plan(self) -> int:
        """Calls that plans ran."""
        return sum(c.by_plan for g in self.groups for c in g.collectives)

    @property
    def is_as_planned(self) -> bool:
        """Whether that holds of every collective of every group."""
        return all(c.is_as_planned for g in self.groups for c in g.collectives)

    @property
    def stock(self) -> dict[str, int]:
        """Calls of held groups that stayed stock, by reason; and under F309 how many groups were sharded after install, whose calls nobody counts."""
        counts: Counter[str] = Counter(group.reason for group in self.groups if group.is_later)
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
                fits = "as planned" if c.is_as_planned else f"NOT as planned: {c.planned}"
                under = "" if c.over == c.by_plan else f", {c.by_plan - c.over} under way"
                did = f" ({c.done}; {fits})" if c.over else ""
                lines.append(f"{group.name}: {c.collective.value.replace('_', '-')}, {plan}, {c.by_plan} calls{under}{did}{stays}")
        return "\n".join(lines)


def group_report(held: Held) -> GroupReport:
    """What a held group did so far."""
    found = []
    for collective, runs in zip(Collective, (held.ring, held.reducer)):
        counts = {why: count for (of, why), count in held.counts.items() if of is collective}
        by_plan, account = counts.pop(None, 0), held.accounts[collective]
        digest, stays = "" if runs is None else runs.plan.digest, tuple((str(why), count) for why, count in counts.items())
        found.append(CollectiveReport(collective, digest, by_plan, stays, account.calls, account.done, account.planned))
    return GroupReport(held.name, tuple(found))
