"""The wait edges of a program: which ops keep the promise that a wait names, and which value of the counter says so."""
from __future__ import annotations

from dataclasses import dataclass

from tidec.index import Index, substitute
from tidec.schedule.program import Event, Program, Promise, statements


@dataclass(frozen=True, slots=True)
class Counted:
    """A counted key of a promise, low <= key < high."""

    key: Index
    low: Index
    high: Index


@dataclass(frozen=True, slots=True)
class Keeper:
    """An op that raises a flag, and at which of its events."""

    op: int
    event: Event


@dataclass(frozen=True, slots=True)
class WaitEdge:
    """One wait. All expressions are over M, the waiting rank (n, j), its call e and its loops.

    op: the wait's id.  on: the keys that choose the counter; of an `each` flag, all keys.  node, lane: the rank that raises it.
    The wait passes once the counter is at least call * size + index + 1, where size is the product of high - low over the box and
    index the row-major index of its keys; an `each` flag has no box, so there it is call + 1.
    kept_by: the ops that raise the flag.
    """

    op: int
    flag: str
    on: tuple[Index, ...]
    node: Index
    lane: Index
    call: Index
    box: tuple[Counted, ...]
    kept_by: tuple[Keeper, ...]


def wait_edges(program: Program) -> tuple[WaitEdge, ...]:
    """The edges of all waits, in the order of the text."""
    ops = [s.op for s in statements(program)]
    keepers: dict[str, list[Keeper]] = {}
    for op in ops:
        for r in op.raises:
            keepers.setdefault(r.promise.flag, []).append(Keeper(op.id, r.event))
    return tuple(_edge(program, op.id, w, tuple(keepers.get(w.flag, ()))) for op in ops for w in op.waits)


def _edge(program: Program, op: int, w: Promise, kept_by: tuple[Keeper, ...]) -> WaitEdge:
    flag = program.flag(w.flag)
    if flag.each:
        return WaitEdge(op, flag.name, w.key, w.node, w.lane, w.call, (), kept_by)
    num_on = len(flag.on)
    on = {d.name: k for d, k in zip(flag.on, w.key)}
    box = tuple(Counted(k, substitute(d.lo, on), substitute(d.hi, on)) for d, k in zip(flag.box, w.key[num_on:]))
    return WaitEdge(op, flag.name, w.key[:num_on], w.node, w.lane, w.call, box, kept_by)
