"""Which groups share a landing: two groups that live at the same time never do.

A group lives in its landing from the moment its all-gather is issued until it is resharded; with slot reuse its gradients then lie there, until all
reads of their reduce-scatter are issued. Two of `ahead` + 1 neighbouring all-gathers have different landings, so that one can arrive while the other is in use
even where the order lets nothing overlap, as in forward. Across steps nothing overlaps: the optimizer stands between.

What runs such an order has one thing to hold: an all-gather writes nowhere before its landing's last user is through, whatever plan that user had.
Through means that what arrived has been read, gradients among it, or, where nobody read it, that it has arrived. That is one wait a rank for its own streams, in
front of the `room` that it signals to its node, and never for something issued later: the lifetimes are those of the host's order.
A plan's own two banks are the case of it in which its calls alternate between two landings.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.ask import Mode
from tidec.inputs.document import quoted
from tidec.inputs.order import Moment, Order, ends_of_backward


@dataclass(frozen=True, slots=True)
class Slot:
    """A landing. groups: those that have it, by index in the order, rising.  bytes: what the largest of them needs."""

    groups: tuple[int, ...]
    bytes: int


def assign_slots(order: Order, landing_bytes: Sequence[int], *, mode: Mode) -> tuple[Slot, ...]:
    """A landing for every group whose all-gather has a plan, by interval colouring.

    landing_bytes: of each group of the order; 0 = its all-gather has no plan, and it gets no landing.
    A group takes the landing that grows least by it, the first of equal ones; groups in the order of their first all-gather or the largest first,
    whichever needs fewer bytes. A group that is unsharded when the order ends shares with none.
    Guaranteed: groups that live at the same time have different landings.  Raises P002 where, with slot reuse, a group is gathered over its own gradients.
    Source: paper appendix F, without its assumption that at most two groups are unsharded at once.
    """
    clashes = _clashes(order, landing_bytes, mode)
    first_use = list(dict.fromkeys(e.group for e in order.events if e.moment is Moment.UNSHARD and landing_bytes[e.group]))
    largest_first = sorted(first_use, key=lambda g: -landing_bytes[g])
    return min((_coloured(turn, clashes, landing_bytes) for turn in (first_use, largest_first)), key=lambda slots: (sum(s.bytes for s in slots), len(slots)))


def _clashes(order: Order, landing_bytes: Sequence[int], mode: Mode) -> list[set[int]]:
    """For each group those that may not have its landing."""
    clashes: list[set[int]] = [set() for _ in order.groups]
    kept = ends_of_backward(order) if mode is Mode.SLOT_REUSE else frozenset()
    living: dict[int, Moment] = {}              # group -> what last happened to what lies in its landing
    recent: list[int] = []

    def clash(a: int, b: int) -> None:
        clashes[a].add(b)
        clashes[b].add(a)

    for at, event in enumerate(order.events):
        g = event.group
        if not landing_bytes[g]:
            continue
        if event.moment is Moment.UNSHARD:
            if g in living:
                raise _gathered_over(order, g)
            for other in (*living, *recent):
                if other != g:
                    clash(g, other)
            living[g] = Moment.UNSHARD
            recent = [*recent, g][-order.ahead :] if order.ahead else []
        elif event.moment is Moment.RESHARD and at in kept:
            living[g] = Moment.RESHARD
        elif event.moment is Moment.REDUCE and living.get(g) is Moment.RESHARD:
            living[g] = Moment.REDUCE
        elif event.moment is Moment.RESHARD or (event.moment is Moment.READ and living.get(g) is Moment.REDUCE):
            del living[g]
    for g in living:
        for other in range(len(order.groups)):
            if other != g and landing_bytes[other]:
                clash(g, other)
    return clashes


def _coloured(turn: Sequence[int], clashes: Sequence[set[int]], landing_bytes: Sequence[int]) -> tuple[Slot, ...]:
    members: list[set[int]] = []
    sizes: list[int] = []
    for g in turn:
        free = [s for s, groups in enumerate(members) if groups.isdisjoint(clashes[g])]
        if not free:
            free = [len(members)]
            members.append(set())
            sizes.append(0)
        slot = min(free, key=lambda s: max(0, landing_bytes[g] - sizes[s]))
        members[slot].add(g)
        sizes[slot] = max(sizes[slot], landing_bytes[g])
    return tuple(Slot(tuple(sorted(groups)), size) for groups, size in zip(members, sizes))


def _gathered_over(order: Order, group: int) -> TidecError:
    return TidecError(Diagnostic(
        "P002", f"group {quoted(order.groups[group].name)} is unsharded again before its gradients are read, and with slot reuse they lie in its landing",
        reason=f"so says {order.origin}", help="record its read before, or use --mode in_place"))
