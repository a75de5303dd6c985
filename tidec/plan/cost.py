"""What a plan costs: descriptors, rounds, waves and bytes, counted on its folded program.

M nodes, L lanes, N = M*L ranks. Counts are of rank 0 in one call. Loops whose body counts the same in every trip are multiplied, not walked, and
no other rank is looked at, so that a plan for a thousand nodes costs what one for eight does.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidec.index import compiled, symbols
from tidec.inputs.ask import Collective
from tidec.plan.blocks import GRADIENTS, Blocks
from tidec.plan.ir import Plan
from tidec.plan.walk import RANK_AND_CALL
from tidec.schedule.program import Block, Event, Item, Loop, Op, OpKind, Program, Step, When, statements

Count = Callable[..., int]


@dataclass(frozen=True, slots=True)
class Cost:
    """descriptors: of an all-gather, its puts and copies; of a reduce-scatter, the copies that push gradients to other lanes.

    rounds: network rounds of a call.  waves: landings of a call, 0 in an all-gather.  arena_bytes, staging_bytes: of a rank.
    """

    descriptors: int
    rounds: int
    waves: int
    arena_bytes: int
    staging_bytes: int


@dataclass(frozen=True, slots=True)
class _Counted:
    """A number that depends on some of the indices."""

    count: Count
    uses: frozenset[str]


def cost(plan: Plan) -> Cost:
    """What the plan costs a rank in one call."""
    blocks, buffers = Blocks(plan), {b.name: b.block for b in plan.program.buffers}

    def descriptors(item: Item, names: tuple[str, ...]) -> _Counted | None:
        if not isinstance(item, Op) or item.kind not in (OpKind.COPY, OpKind.PUT):
            return None
        source, target = (buffers[c.buffer] for c in (item.reads[0], item.writes[0]))
        if source in GRADIENTS:
            key = item.reads[0].key
            return _counted(key, compiled(key, names), lambda k: blocks.num_pieces(source, k))
        if plan.collective is Collective.REDUCE_SCATTER:
            return None
        return _constant(blocks.num_placed if target is Block.PLACED else 1)

    around = _round_loops(plan.program)

    def rounds(item: Item, names: tuple[str, ...]) -> _Counted | None:
        if isinstance(item, Loop) and any(item is loop for loop in around):
            bounds, step = compiled((item.lo, item.hi), names), item.step
            return _counted((item.lo, item.hi), bounds, lambda b: len(_indices(*b, step)))
        return None

    def waves(item: Item, names: tuple[str, ...]) -> _Counted | None:
        return _constant(1) if isinstance(item, Op) and item.kind is OpKind.LAND else None

    totals = [_total(plan.program.body, RANK_AND_CALL, weigh) for weigh in (descriptors, rounds, waves)]
    return Cost(*(t.count(plan.nodes, 0, 0, 0) if t else 0 for t in totals), plan.arena.bytes, plan.arena.staging_bytes)


def _round_loops(program: Program) -> tuple[Loop, ...]:
    """The loop of which each trip is a network round: the innermost one around the puts and the waits, on their stream, for what they bring."""
    every = statements(program)
    puts = [s for s in every if s.op.kind is OpKind.PUT]
    brought = {(s.op.stream, r.promise.flag) for s in puts for r in s.op.raises if r.event is Event.THEN}
    paths = [s.loops for s in (*puts, *(s for s in every for w in s.op.waits if (s.op.stream, w.flag) in brought))]
    shared = [level[0] for level in zip(*paths) if all(loop is level[0] for loop in level)]
    return tuple(shared[-1:])


def _total(items: tuple[Item, ...], names: tuple[str, ...], weigh: Callable[[Item, tuple[str, ...]], _Counted | None]) -> _Counted | None:
    """The sum of what `weigh` gives for every item, over all trips; what it counts is not looked into. `None`: nothing counts."""
    parts = [part for item in items if (part := weigh(item, names) or _inside(item, names, weigh)) is not None]
    if len(parts) < 2:
        return parts[0] if parts else None
    counts = [p.count for p in parts]
    return _Counted(lambda *env: sum(c(*env) for c in counts), frozenset().union(*(p.uses for p in parts)))


def _inside(item: Item, names: tuple[str, ...], weigh: Callable[[Item, tuple[str, ...]], _Counted | None]) -> _Counted | None:
    if isinstance(item, Op):
        return None
    inner = (*names, item.name) if isinstance(item, Loop) else names
    body = _total(item.body, inner, weigh)
    if body is None:
        return None
    if isinstance(item, When):
        holds, count = compiled(item.cond, names), body.count
        return _Counted(lambda *env: count(*env) if holds(*env) else 0, body.uses | set(symbols(item.cond)))
    return _repeated(item, compiled((item.lo, item.hi), names), body)


def _repeated(loop: Loop, bounds: Callable[..., tuple[int, int]], body: _Counted) -> _Counted:
    uses = (body.uses | set(symbols(loop.lo)) | set(symbols(loop.hi))) - {loop.name}
    count, step = body.count, loop.step
    if step is Step.RUN:
        def run(*env: int) -> int:
            low, high = bounds(*env)
            return count(*env, low) if low < high else 0
        return _Counted(run, uses)
    if loop.name not in body.uses:
        return _Counted(lambda *env: len(trips) * count(*env, trips[0]) if (trips := _indices(*bounds(*env), step)) else 0, uses)
    return _Counted(lambda *env: sum(count(*env, i) for i in _indices(*bounds(*env), step)), uses)


def _indices(low: int, high: int, step: Step) -> range | tuple[int, ...]:
    if step is not Step.DOUBLING:
        return range(low, high)
    doubled = []
    while low < high:
        doubled.append(low)
        low *= 2
    return tuple(doubled)


def _counted(trees: tuple, values: Callable[..., tuple], count: Callable[[tuple], int]) -> _Counted:
    return _Counted(lambda *env: count(values(*env)), frozenset(name for x in trees for name in symbols(x)))


def _constant(value: int) -> _Counted:
    return _Counted(lambda *env: value, frozenset())
