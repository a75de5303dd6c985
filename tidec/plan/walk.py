"""A plan's folded program, compiled once and unrolled into the steps of one rank.

M nodes, L lanes, N = M*L ranks, n node, j lane, e call.

Every op becomes one function that gives all its index values at once, and one closure that makes a `Step` of them; loops and conditions
stay a tree. Nothing here knows a schedule or a byte: what a block is made of stands in `blocks.py`.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Union

from tidec.errors import Spot
from tidec.index import Index, compiled, substitute
from tidec.plan.blocks import At, Blocks, outside
from tidec.plan.steps import Level, Move, Step
from tidec.schedule.program import Cell, Every, Item, Op, OpKind, Promise, Scope, When
from tidec.schedule.program import Step as Advance

if TYPE_CHECKING:
    from tidec.plan.ir import Plan

Rank = tuple[int, int]
Values = tuple[int, ...]
Make = Callable[[Rank, Values], Step]
RANK_AND_CALL = ("M", "n", "j", "e")


@dataclass(frozen=True, slots=True)
class _Site:
    """An op: its values under the loops, and the step that they give."""

    values: Callable[..., Values]
    make: Make


@dataclass(frozen=True, slots=True)
class _Run:
    """An unordered set of copies whose addresses advance evenly, issued as one."""

    bounds: Callable[..., Values]
    site: _Site


@dataclass(frozen=True, slots=True)
class _Loop:
    bounds: Callable[..., Values]
    is_doubling: bool
    body: tuple[_Tree, ...]


@dataclass(frozen=True, slots=True)
class _When:
    holds: Callable[..., bool]
    body: tuple[_Tree, ...]


_Tree = Union[_Site, _Run, _Loop, _When]


class Walk:
    """The steps of one plan, rank by rank."""

    def __init__(self, plan: Plan):
        self._plan, self._blocks = plan, Blocks(plan)
        self._flags = {f.name: f for f in plan.program.flags}
        self._body = self._items(plan.program.body, RANK_AND_CALL)

    def steps(self, node: int, lane: int, call: int) -> Iterator[Step]:
        """The steps of rank (node, lane) in a call, in position order."""
        return self._unroll(self._body, (self._plan.nodes, node, lane, call))

    def _unroll(self, trees: tuple[_Tree, ...], env: Values) -> Iterator[Step]:
        for tree in trees:
            if type(tree) is _Site:
                yield tree.make(env[1:3], tree.values(*env))
            elif type(tree) is _Loop:
                low, high = tree.bounds(*env)
                if tree.is_doubling:
                    while low < high:
                        yield from self._unroll(tree.body, (*env, low))
                        low *= 2
                else:
                    for i in range(low, high):
                        yield from self._unroll(tree.body, (*env, i))
            elif type(tree) is _When:
                if tree.holds(*env):
                    yield from self._unroll(tree.body, env)
            else:
                low, high = tree.bounds(*env)
                if low < high:
                    yield _folded(tree, env, low, high)

    # ---- compiling

    def _items(self, items: tuple[Item, ...], names: tuple[str, ...]) -> tuple[_Tree, ...]:
        trees: list[_Tree] = []
        for item in items:
            if isinstance(item, Op):
                trees.append(self._site(item, names))
            elif isinstance(item, When):
                trees.append(_When(compiled(item.cond, names), self._items(item.body, names)))
            else:
                bounds, inside = compiled((item.lo, item.hi), names), (*names, item.name)
                if item.step is Advance.RUN:
                    (op,) = item.body
                    trees.append(_Run(bounds, self._site(op, inside)))
                else:
                    trees.append(_Loop(bounds, item.step is Advance.DOUBLING, self._items(item.body, inside)))
        return tuple(trees)

    def _site(self, op: Op, names: tuple[str, ...]) -> _Site:
        asks: list[Index] = []
        make = {
            OpKind.WAIT: self._wait, OpKind.SIGNAL: self._raise, OpKind.PUT: self._put, OpKind.COPY: self._copy, OpKind.SUM: self._sum,
            OpKind.LAND: self._land, OpKind.ZERO: self._named, OpKind.FREE: self._named, OpKind.READ: self._named, OpKind.CAST: self._cast,
            OpKind.JOIN: self._join,
        }[op.kind](op, asks)
        return _Site(compiled(tuple(asks), names), make)

    def _wait(self, op: Op, asks: list[Index]) -> Make:
        (level,) = (self._level(w, asks, op.spot, is_wait=True) for w in op.waits)
        return lambda rank, v: Step(op, levels=(level(rank, v),))

    def _raise(self, op: Op, asks: list[Index]) -> Make:
        levels = tuple(self._level(r.promise, asks, op.spot, is_wait=False) for r in op.raises)
        return lambda rank, v: Step(op, levels=tuple(level(rank, v) for level in levels))

    def _put(self, op: Op, asks: list[Index]) -> Make:
        src, dst = self._access(op.reads[0], asks, op.spot), self._access(op.writes[0], asks, op.spot)
        levels, context, moves = self._raise(op, asks), self._ask(op.context, asks), self._blocks.moves
        return lambda rank, v: Step(op, moves(src(v), dst(v)), levels=levels(rank, v).levels, context=v[context])

    def _copy(self, op: Op, asks: list[Index]) -> Make:
        src, dst = self._access(op.reads[0], asks, op.spot), self._access(op.writes[0], asks, op.spot)
        moves = self._blocks.moves
        return lambda rank, v: Step(op, moves(src(v), dst(v)))

    def _cast(self, op: Op, asks: list[Index]) -> Make:
        src, dst = self._access(op.reads[0], asks, op.spot), self._access(op.writes[0], asks, op.spot)
        return lambda rank, v: Step(op, self._blocks.casts(src(v), dst(v)))

    def _sum(self, op: Op, asks: list[Index]) -> Make:
        staged, own = (self._access(c, asks, op.spot) for c in op.reads)
        into, seed = self._access(op.writes[0], asks, op.spot), self._ask(op.seed, asks)
        blocks = self._blocks

        def make(rank: Rank, v: Values) -> Step:
            target = into(v)
            return Step(op, blocks.terms(staged(v), own(v), target, rank[1]), blocks.extents(target), seed=bool(v[seed]))

        return make

    def _land(self, op: Op, asks: list[Index]) -> Make:
        src, into = self._access(op.reads[0], asks, op.spot), self._access(op.writes[0], asks, op.spot)
        seed, blocks = self._ask(op.seed, asks), self._blocks

        def make(rank: Rank, v: Values) -> Step:
            target = into(v)
            return Step(op, blocks.landings(src(v), target, rank[1]), blocks.extents(target), seed=bool(v[seed]))

        return make

    def _named(self, op: Op, asks: list[Index]) -> Make:
        (named,) = (self._access(c, asks, op.spot) for c in (*op.reads, *op.writes))
        extents = self._blocks.extents
        return lambda rank, v: Step(op, extents=extents(named(v)))

    def _join(self, op: Op, asks: list[Index]) -> Make:
        step = Step(op)
        return lambda rank, v: step

    def _ask(self, x: object, asks: list) -> int:
        """The place in the op's values at which that expression will stand."""
        asks.append(x)
        return len(asks) - 1

    def _access(self, cell: Cell, asks: list[Index], spot: Spot) -> Callable[[Values], At]:
        key = tuple(k if isinstance(k, Every) else self._ask(k, asks) for k in cell.key)
        node = self._ask(cell.node, asks)
        lane = cell.lane if isinstance(cell.lane, Every) else self._ask(cell.lane, asks)
        at, home = self._blocks.at, self._blocks.home(cell.buffer)
        first, count = node - len(key), len(key)
        if isinstance(lane, Every):
            return lambda v: at(home, tuple(k if isinstance(k, Every) else v[k] for k in key), v[node], lane, spot)
        if any(isinstance(k, Every) for k in key):
            return lambda v: at(home, tuple(k if isinstance(k, Every) else v[k] for k in key), v[node], v[lane], spot)
        return lambda v: at(home, v[first : first + count], v[node], v[lane], spot)

    def _level(self, p: Promise, asks: list[Index], spot: Spot, *, is_wait: bool) -> Callable[[Rank, Values], Level]:
        """The counter of a promise and the value that keeps it: call * |box| + the row-major index of the counted keys in the box + 1."""
        flag = self._flags[p.flag]
        first = len(asks)
        for x in (*p.key, p.node, p.lane, p.call):
            self._ask(x, asks)
        num_keys, num_on = len(p.key), len(flag.on)
        on = {d.name: k for d, k in zip(flag.on, p.key)}
        for d in flag.dims:
            self._ask(substitute(d.lo, on), asks)
            self._ask(substitute(d.hi, on), asks)
        node, bounds = first + num_keys, first + num_keys + 3
        is_self, name, each = flag.scope is Scope.SELF, flag.name, flag.each

        def level(rank: Rank, v: Values) -> Level:
            size, index = 1, 0
            for i in range(num_keys):
                low, high, k = v[bounds + 2 * i], v[bounds + 2 * i + 1], v[first + i]
                if not low <= k < high:
                    raise outside(f"key {k} of flag {name} is outside {low}..{high - 1}", spot)
                if i >= num_on:
                    size, index = size * (high - low), index * (high - low) + k - low
            call = v[node + 2]
            other = (v[node], v[node + 1])
            key = v[first : first + (num_keys if each else num_on)]
            value = call + 1 if each else call * size + index + 1
            return Level(name, key, rank, other, value) if is_wait or is_self else Level(name, key, other, rank, value)

        return level


def _folded(run: _Run, env: Values, low: int, high: int) -> Step:
    """The copies of a run as one step: every descriptor of the first trip, repeated with the pitch that leads to the last one."""
    trips = high - low
    first, last = (run.site.make(env[1:3], run.site.values(*env, k)) for k in (low, high - 1))
    return first if trips == 1 else replace(first, moves=tuple(_stride(a, b, trips) for a, b in zip(first.moves, last.moves, strict=True)))


def _stride(first: Move, last: Move, trips: int) -> Move:
    # `check_program` has shown that addresses are linear in the run's index, so the last trip gives the pitch.
    src, src_rest = divmod(last.src.offset - first.src.offset, trips - 1)
    dst, dst_rest = divmod(last.dst.offset - first.dst.offset, trips - 1)
    assert first.rows == 1 and (src_rest, dst_rest) == (0, 0) and first.width <= min(src, dst), (first, last)
    return replace(first, rows=trips, src_pitch=src, dst_pitch=dst)
