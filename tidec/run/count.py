"""What a rank does in one call, by kind of op: as its plan has it, and as a node counted it while it did it."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidec.index import symbols
from tidec.inputs.ask import Collective
from tidec.plan.ir import Plan
from tidec.plan.steps import Step
from tidec.schedule.program import ALL, Item, Loop, OpKind, When

# In the order of tidec/node.h.
KINDS = (OpKind.WAIT, OpKind.SIGNAL, OpKind.COPY, OpKind.PUT, OpKind.CAST, OpKind.ZERO, OpKind.SUM, OpKind.LAND)


@dataclass(frozen=True, slots=True)
class Tally:
    """Of each of KINDS, in order: how many ops, and how many bytes they read, or of zeros write.

    A copy, put or cast is one descriptor, a signal or wait one counter. A put raises two counters, which are among the signals.
    """

    ops: tuple[int, ...] = (0,) * len(KINDS)
    bytes: tuple[int, ...] = (0,) * len(KINDS)

    def __add__(self, other: Tally) -> Tally:
        return Tally(tuple(map(sum, zip(self.ops, other.ops))), tuple(map(sum, zip(self.bytes, other.bytes))))

    def __str__(self) -> str:
        return ", ".join(f"{num} {kind.value}" + (f" {num_bytes:,} B" if num_bytes else "") for kind, num, num_bytes in zip(KINDS, self.ops, self.bytes) if num) or "nothing"


def counted(numbers: list[int]) -> Tally:
    """What a node gives: ops of each kind, then bytes."""
    assert len(numbers) == 2 * len(KINDS), numbers
    return Tally(tuple(numbers[: len(KINDS)]), tuple(numbers[len(KINDS) :]))


def planned(plan: Plan, rank: int, call: int) -> Tally:
    """What the plan has a rank do in a call. Of an all-gather what its reading stream does belongs to the call before, whose landing is read there."""
    ops, num_bytes = [0] * len(KINDS), [0] * len(KINDS)
    for step in _steps(plan, rank, call):
        for kind, num, some_bytes in _done(step, plan.lanes):
            ops[KINDS.index(kind)] += num
            num_bytes[KINDS.index(kind)] += some_bytes
    return Tally(tuple(ops), tuple(num_bytes))


def _steps(plan: Plan, rank: int, call: int) -> Iterator[Step]:
    if plan.collective is Collective.REDUCE_SCATTER:
        yield from plan.steps(rank, call)
        return
    after = tuple(plan.steps(rank, call + 1))
    (reading,) = {s.stream for s in after if s.kind is OpKind.READ}
    yield from (s for s in plan.steps(rank, call) if s.stream != reading)
    yield from (s for s in after if s.stream == reading)


def _done(step: Step, lanes: int) -> Iterator[tuple[OpKind, int, int]]:
    kind = step.kind
    if kind in (OpKind.WAIT, OpKind.SIGNAL):
        yield kind, len(step.levels), 0
    elif kind in (OpKind.COPY, OpKind.PUT, OpKind.CAST):
        each = [lanes if m.dst.lane is ALL else 1 for m in step.moves]
        yield kind, sum(each), sum(n * m.width * m.rows for n, m in zip(each, step.moves))
        yield OpKind.SIGNAL, len(step.levels) * len(step.moves), 0
    elif kind is OpKind.ZERO:
        yield kind, len(step.extents), sum(x.bytes for x in step.extents)
    elif kind in (OpKind.SUM, OpKind.LAND):
        yield kind, 1, (lanes if kind is OpKind.LAND else 1) * sum(m.width * m.rows for m in step.moves)


@dataclass(slots=True)
class Planned:
    """What a plan has one rank do, call by call. Walked once where no loop and no condition of the program names the call."""

    plan: Plan
    rank: int
    _known: dict[int, Tally] = field(default_factory=dict)
    _varies: bool | None = None

    def of(self, call: int) -> Tally:
        """In that call."""
        if self._varies is None:
            self._varies = _names_call(self.plan.program.body)
        key = call if self._varies else 0
        if key not in self._known:
            self._known = {key: planned(self.plan, self.rank, key)}
        return self._known[key]


def _names_call(items: tuple[Item, ...]) -> bool:
    """Whether what is done depends on which call it is."""
    trees = [x for item in items for x in ((item.lo, item.hi) if isinstance(item, Loop) else (item.cond,) if isinstance(item, When) else ())]
    return any("e" in symbols(x) for x in trees) or any(_names_call(item.body) for item in items if isinstance(item, (Loop, When)))


@dataclass(slots=True)
class Account:
    """Of one collective of one group: how many calls are over that plans ran, what was carried out in them, and what their plans say."""

    calls: int = 0
    done: Tally = Tally()
    planned: Tally = Tally()

    def add(self, done: Tally, planned: Tally) -> None:
        self.calls, self.done, self.planned = self.calls + 1, self.done + done, self.planned + planned
