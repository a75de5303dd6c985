"""A plan's program as C++ statements whose values are still expressions: one walk over all streams, in position order.

M nodes, L lanes, n node, j lane, e call. This file says what a statement consists of, `names.py` which values get a name.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Union

from tidec.emit.cpp import LOWEST, SUM
from tidec.emit.simplify import Simplifier
from tidec.errors import Diagnostic, Spot, TidecError
from tidec.index import Expr, Index, Node, substitute, symbol, symbols, top2
from tidec.index import Op as Tree
from tidec.schedule.program import Block, Cell, Coord, Event, Every, Item, Loop, Op, OpKind, Program, Promise, Step, When

MAX_CALL = 2**31 - 1
# What a loop cannot be called in C++: words of the language, and names that the emitted function has already.
WORDS = frozenset(
    "M L n j e ops runner rank call floor_div floor_mod wrap back top2 least most alignas alignof and asm auto bool break case catch char class const "
    "constexpr continue decltype default delete do double else enum explicit export extern false float for friend goto if inline int long mutable "
    "namespace new noexcept not nullptr operator or private protected public register return short signed sizeof static struct switch template this "
    "throw true try typedef typeid typename union unsigned using virtual void volatile while xor".split()
)
_EVERY = {Every.ALL: "kAll", Every.OTHERS: "kOthers"}


@dataclass(frozen=True, slots=True)
class Value:
    """A simplified expression in a statement. level: how tightly its place binds."""

    node: object
    level: int = LOWEST


Part = Union[str, Value]


@dataclass(frozen=True, slots=True)
class Line:
    """One statement. A part ",\n" is where it is cut in two if it is long."""

    parts: tuple[Part, ...]
    spot: Spot


@dataclass(frozen=True, slots=True)
class Nest:
    """A loop or a condition. index: the loop's symbol as the values have it, "" of a condition.  stream: of an unordered set, "" of others."""

    head: tuple[Part, ...]
    index: str
    body: tuple[Statement, ...]
    spot: Spot
    stream: str = ""


Statement = Union[Line, Nest]


_RESERVED = frozenset(("kAll", "kOthers", "kLayout", "kParams", "kCasts", "kSegments", "kSegmentStarts", "kArenaBytes", "kMaxKeys"))


class Constants:
    """The C++ constants of a program's streams, flags and buffers: row_stage is kRowStage; where two would share one, kRowStageFlag."""

    def __init__(self, program: Program):
        self._names: dict[tuple[str, str], str] = {}
        taken = set(_RESERVED)
        for kind, things in (("Buffer", program.buffers), ("Flag", program.flags), ("Stream", program.streams)):
            for thing in things:
                stem = "k" + "".join(word[:1].upper() + word[1:] for word in thing.name.split("_"))
                name = next(x for x in (stem, *(f"{stem}{kind}{i or ''}" for i in range(len(taken) + 1))) if x not in taken)
                taken.add(name)
                self._names[kind, thing.name] = name

    def buffer(self, name: str) -> str:
        return self._names["Buffer", name]

    def flag(self, name: str) -> str:
        return self._names["Flag", name]

    def stream(self, name: str) -> str:
        return self._names["Stream", name]


class Scan:
    """Reads the items of a program on a known number of nodes.

    statements: the whole walk.  constants: what its streams, flags and buffers are called.
    simple: knows all values of the statements; a loop's index is the symbol `name#number` in them.
    hints: the id of a value to what it may be called, best first.  loop_names: what no value may be called.
    Raises E004 with the line of an op that C++ has no form for.
    """

    def __init__(self, program: Program, nodes: int):
        self._program = program
        self.constants = Constants(program)
        self.simple = Simplifier({"M": (nodes, nodes), "n": (0, nodes - 1), "j": (0, program.lanes - 1), "e": (0, MAX_CALL)})
        self.hints: dict[int, list[str]] = {}
        self.loop_names: set[str] = set()
        self._num_loops = 0
        self.statements = tuple(self._items(program.body, {}, in_set=False))

    # ---- structure

    def _items(self, items: tuple[Item, ...], env: dict[str, Index], *, in_set: bool) -> Iterator[Statement]:
        for item in items:
            if isinstance(item, Op):
                yield self._op(item, env)
            elif isinstance(item, When):
                cond = self._read(item.cond, env)
                body = tuple(self._items(item.body, env, in_set=in_set)) if cond is not False else ()
                if body:
                    yield from body if cond is True else (Nest(("if (", Value(cond), ")"), "", body, item.spot),)
            elif item.step is Step.RUN:
                yield from self._run(item, env)
            else:
                yield from self._loop(item, env, in_set)

    def _loop(self, loop: Loop, env: dict[str, Index], in_set: bool) -> Iterator[Statement]:
        """A loop that never runs on this many nodes is left out, of one that runs once only the body is left."""
        name = loop.name
        lo, hi = self._read(loop.lo, env, f"{name}_begin"), self._read(loop.hi, env, f"{name}_end")
        (least, low), (high, most) = self.simple.bounds(lo), self.simple.bounds(hi)
        if most <= least:
            return
        is_set = loop.step is Step.EACH
        if least == low and high == most == least + 1:
            body = tuple(self._items(loop.body, {**env, name: least}, in_set=in_set or is_set))
            if body:
                yield Line((f"// {name} = {least}",), loop.spot)
            yield from body
            return
        self._num_loops += 1
        name = f"{name}_" if name in WORDS else name
        self.loop_names.add(name)
        index = f"{name}#{self._num_loops}"
        self.simple.add(index, least, top2(most - 1) if loop.step is Step.DOUBLING else most - 1)
        body = tuple(self._items(loop.body, {**env, loop.name: symbol(index)}, in_set=in_set or is_set))
        if body:
            advance = f"{name} *= 2" if loop.step is Step.DOUBLING else f"++{name}"
            head = (f"for (int64_t {name} = ", Value(lo), f"; {name} < ", "L" if loop.over_lanes else Value(hi, SUM), f"; {advance})")
            (stream,) = {self.constants.stream(s) for s in _streams(loop.body)} if is_set and not in_set else ("",)
            yield Nest(head, index, body, loop.spot, stream)

    def _run(self, loop: Loop, env: dict[str, Index]) -> Iterator[Statement]:
        """An even run of copies is one strided copy: from its first index on, so many rows."""
        (op,) = loop.body
        assert isinstance(op, Op) and op.kind is OpKind.COPY, op
        lo = self._read(loop.lo, env)
        rows = self._read(Expr(Tree.SUB, self._read(loop.hi, env), lo), {}, f"num_{loop.name}")
        if self.simple.bounds(rows)[1] <= 0:
            return
        first, second = {**env, loop.name: lo}, {**env, loop.name: self._read(Expr(Tree.ADD, lo, 1), {})}
        src, dst = op.reads[0], op.writes[0]
        blocks = tuple(self._program.buffer(c.buffer).block for c in (src, dst))
        if blocks != (Block.SHARD, Block.PLACED) or self._steps(src, first, second) != [1] or self._steps(dst, first, second) != [0, 1, 0]:
            raise TidecError(Diagnostic("E004", f"the run over {loop.name} has no strided form in C++", (op.spot,),
                                        reason="it must place the shards of one stage slot after the other, of one node after the other",
                                        help="write it as each(), one copy a trip"))
        cells = (*self._cell(src, first), ", ", *self._cell(dst, first))
        yield Line((f"ops.copy_run({self.constants.stream(op.stream)}, ", *cells, ", ", Value(rows), ");"), op.spot)

    def _steps(self, cell: Cell, first: dict[str, Index], second: dict[str, Index]) -> list[object]:
        """By how much each key grows from one trip to the next."""
        return [self._read(Expr(Tree.SUB, self._read(k, second), self._read(k, first)), {}) for k in cell.key]

    # ---- ops

    def _op(self, op: Op, env: dict[str, Index]) -> Line:
        parts: list[Part] = [f"ops.{op.kind.value}({self.constants.stream(op.stream)}"]
        for cell in op.reads:
            parts += [", ", *self._cell(cell, env)]
        for cell in op.writes:
            parts += [",\n" if op.kind is OpKind.SUM else ", ", *self._cell(cell, env)]
        for r in sorted(op.raises, key=lambda r: r.event is Event.DONE):
            parts += [",\n" if r.event is Event.THEN else ", ", *self._promise(r.promise, "at", env)]
        for promise in op.waits:
            parts += [", ", *self._promise(promise, "by", env)]
        if op.kind in (OpKind.SUM, OpKind.LAND):
            parts += [", ", Value(self._read(op.seed, env))]
        if isinstance(op.context, Node) or op.context:
            parts += [", ", Value(self._read(op.context, env, "context"))]
        return Line((*parts, ");"), op.spot)

    def _cell(self, cell: Cell, env: dict[str, Index]) -> list[Part]:
        dims = self._program.buffer(cell.buffer).dims
        keys = [self._coord(k, env, d.name, f"{cell.buffer}_{d.name}") for k, d in zip(cell.key, dims)]
        return [f"{self.constants.buffer(cell.buffer)}(", *_listed(keys), ").at(", *self._rank(cell.node, cell.lane, env), ")"]

    def _promise(self, promise: Promise, preposition: str, env: dict[str, Index]) -> list[Part]:
        """The counter, the rank at its other end, and the value: call * |box| + the row-major index of the counted keys + 1."""
        flag = self._program.flag(promise.flag)
        call = self._read(promise.call, env, f"{flag.name}_call")
        keys = [self._read(k, env, f"{flag.name}_{d.name}") for k, d in zip(promise.key, flag.dims)]
        on = {d.name: k for d, k in zip(flag.on, keys)}
        size: Index = 1
        index: Index = 0
        if not flag.each:
            for d, k in zip(flag.box, keys[len(flag.on):]):
                assert d.step is Step.BY_ONE, d
                extent = self._read(Expr(Tree.SUB, substitute(d.hi, on), substitute(d.lo, on)), {})
                index = Expr(Tree.ADD, Expr(Tree.MUL, index, extent), Expr(Tree.SUB, k, substitute(d.lo, on)))
                size = self._read(Expr(Tree.MUL, size, extent), {})
            keys = keys[: len(flag.on)]
        value = Expr(Tree.ADD, Expr(Tree.ADD, Expr(Tree.MUL, call, size), index), 1)
        return [
            f"{self.constants.flag(flag.name)}(", *_listed(list(map(Value, keys))), f").{preposition}(", *self._rank(promise.node, promise.lane, env), "), ",
            Value(self._read(value, {}, "level", f"{flag.name}_level")),
        ]

    def _rank(self, node: Index, lane: Coord, env: dict[str, Index]) -> list[Part]:
        return [Value(self._read(node, env, "peer")), ", ", self._coord(lane, env, "peer_lane")]

    def _coord(self, coord: Coord, env: dict[str, Index], *hints: str) -> Part:
        return _EVERY[coord] if isinstance(coord, Every) else Value(self._read(coord, env, *hints))

    def _read(self, node: object, env: dict[str, Index], *hints: str) -> object:
        value = self.simple(substitute(node, env) if env else node)
        if isinstance(value, Node):
            known = self.hints.setdefault(id(value), [])
            known += [h for h in hints if h not in known]
        return value


def _listed(parts: list[Part]) -> list[Part]:
    return [x for i, part in enumerate(parts) for x in ((", ", part) if i else (part,))]


def _streams(items: tuple[Item, ...]) -> Iterator[str]:
    for item in items:
        yield from (item.stream,) if isinstance(item, Op) else _streams(item.body)


def loop_symbols(value: object) -> frozenset[str]:
    """The loop indices in a value."""
    return frozenset(s for s in symbols(value) if "#" in s)
