"""What a traced schedule is: buffers, flags, and one host program of ops under loops and conditions.

M nodes, L lanes, N = M*L ranks, n node, j lane, e call. A `Program` is plain frozen data; the node count, the rank, the call and the loop
indices are symbols in it, the lane count and all knobs are ints. Its canonical JSON is what is hashed.
"""
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Union

from tidec.errors import Spot
from tidec.index import Cond, Expr, Index, Truth, to_json


class Every(Enum):
    """A whole dimension of a cell, or all lanes of a node as the place of a cell."""

    ALL = "all"          # every index
    OTHERS = "others"    # every index but the rank's own lane


ALL, OTHERS = Every.ALL, Every.OTHERS
Coord = Union[Expr, int, Every]


class Scope(Enum):
    """For whom a flag is raised, which decides how many counters a rank has of it."""

    SELF = "self"      # for itself: 1
    NODE = "node"      # for every lane of the node: L
    LANES = "lanes"    # for the other lanes of the node: L - 1
    RAIL = "rail"      # for the other nodes on the rail: M - 1


class Kind(Enum):
    """Where a buffer comes from. Inputs are another tensor in every call."""

    INPUT = "input"
    OUTPUT = "output"
    TEMP = "temp"


class Block(Enum):
    """What one block of a buffer is made of. Its bytes are the layout's business (`plan/layout.py`)."""

    SHARD = "shard"              # one rank's rows of every parameter, packed
    PLACED = "placed"            # the same rows at their final address in the parameter-major landing
    GRAD_SLICE = "grad_slice"    # one sub-slice of the L rows of a node's ranks, where autograd left it
    SLICE = "slice"              # the same, packed: L rows, in the gradients' dtype
    PARTIAL = "partial"          # the same summed over a node: L rows in fp32
    OUT_SLICE = "out_slice"      # one sub-slice of the rank's own packed output, fp32
    GRAD_ROW = "grad_row"        # one part of one rank's row, where autograd left it
    ROW = "row"                  # the same, packed, in the gradients' dtype
    OUT_ROW = "out_row"          # one part of the rank's own packed output, fp32


class Step(Enum):
    """How a loop advances, and whether its iterations are ordered."""

    BY_ONE = "by_one"
    DOUBLING = "doubling"    # 1, 2, 4, ...
    EACH = "each"            # an unordered set, ended by a join
    RUN = "run"              # an unordered set whose descriptors fold into one strided descriptor, ended by a join


class OpKind(Enum):
    """The ops. READ and FREE are what the caller does between calls; they move nothing."""

    COPY = "copy"
    PUT = "put"
    SIGNAL = "signal"
    WAIT = "wait"
    SUM = "sum"
    LAND = "land"
    ZERO = "zero"
    CAST = "cast"
    READ = "read"
    FREE = "free"
    JOIN = "join"


class Event(Enum):
    """When a promise is raised: at an op's end, or for a put once its source is reusable or its data has arrived."""

    END = "end"
    DONE = "done"
    THEN = "then"


@dataclass(frozen=True, slots=True)
class Dim:
    """One extent: lo <= index < hi; DOUBLING means the powers of two in it. `hi` may name the flag's `on` keys."""

    name: str
    lo: Index
    hi: Index
    step: Step = Step.BY_ONE


@dataclass(frozen=True, slots=True)
class Buffer:
    """Blocks addressed by `dims` on every rank.

    per: the loops whose values (after the call) say which use of a block an access belongs to.
    holds: what the block with indices `#<dim>` holds in the use `@<loop>`, seen by the owner at (n, j) in call e; empty if nobody says.
    source: whose contributions are in it: (node, lane), each an index or ALL; empty if nobody says.
    before: the use before a use (call, then `per`), only where the buffer rests at zero.
    found: where the writer of block `#<dim>` is: values of its rank and loops, as names and expressions; empty if unstated.
    """

    name: str
    kind: Kind
    block: Block
    dims: tuple[Dim, ...]
    per: tuple[str, ...]
    rests_at_zero: bool
    holds: tuple[Index, ...]
    source: tuple[Coord, ...]
    before: tuple[Index, ...]
    found: tuple[tuple[str, Index], ...]
    spot: Spot


@dataclass(frozen=True, slots=True)
class Flag:
    """An array of promises with a declared box per call.

    on: the keys that choose the counter; box: the keys that are counted, row-major, in every call. each: one event a key, no counter.
    """

    name: str
    scope: Scope
    on: tuple[Dim, ...]
    box: tuple[Dim, ...]
    each: bool
    spot: Spot

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.on + self.box


@dataclass(frozen=True, slots=True)
class Cell:
    """An access: block `key` of a buffer on rank (node, lane), in the use (call, *use)."""

    buffer: str
    key: tuple[Coord, ...]
    node: Index
    lane: Coord
    call: Index
    use: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Promise:
    """Element `key` of a flag in a call. (node, lane) is the rank it is raised for, or in a wait the rank that raises it."""

    flag: str
    key: tuple[Index, ...]
    node: Index
    lane: Index
    call: Index


@dataclass(frozen=True, slots=True)
class Raise:
    """A promise kept at an event of an op."""

    event: Event
    promise: Promise


@dataclass(frozen=True, slots=True)
class Op:
    """One op. `id` is its place in the text; `words` are expressions that messages name (contributor 8).

    seed: only of sums and landings: where it holds, the destination starts from what the caller accumulates into, or from zero.
    context: only of puts: the RMA context that carries it. Puts to one peer over one context arrive in order, over several in any order.
    """

    id: int
    kind: OpKind
    stream: str
    reads: tuple[Cell, ...]
    writes: tuple[Cell, ...]
    raises: tuple[Raise, ...]
    waits: tuple[Promise, ...]
    words: tuple[tuple[str, Index], ...]
    seed: Truth
    context: Index
    spot: Spot

    @property
    def label(self) -> str:
        return f"{self.kind.value}#{self.id}"


@dataclass(frozen=True, slots=True)
class Loop:
    """`for name in lo..hi`. over_lanes: the index is a lane. at_most: a stated bound of its trips (a hint), 0 if none. spot: where the text opens it."""

    name: str
    lo: Index
    hi: Index
    step: Step
    over_lanes: bool
    at_most: int
    body: tuple[Item, ...]
    spot: Spot = Spot("", 0)


@dataclass(frozen=True, slots=True)
class When:
    """The body runs where the condition holds. spot: where the text opens it."""

    cond: Cond
    body: tuple[Item, ...]
    spot: Spot = Spot("", 0)


Item = Union[Op, Loop, When]


@dataclass(frozen=True, slots=True)
class Cover:
    """Every ask (values of `ask`) is served by a write: `found` gives its rank and loops, the cell is (node, *key) on `lane`."""

    buffer: str
    ask: tuple[Dim, ...]
    found: tuple[tuple[str, Index], ...]
    node: Index
    lane: Index
    key: tuple[Index, ...]
    spot: Spot


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream's name and the role of the ranks that have it."""

    name: str
    role: str = "every rank"


@dataclass(frozen=True, slots=True)
class Program:
    """One schedule for one lane count and one setting of the knobs, for every node count."""

    name: str
    lanes: int
    knobs: tuple[tuple[str, int | str], ...]
    buffers: tuple[Buffer, ...]
    flags: tuple[Flag, ...]
    streams: tuple[Stream, ...]
    body: tuple[Item, ...]
    covers: tuple[Cover, ...]
    premises: tuple[Cond, ...]

    @property
    def stripes(self) -> int:
        """How many RMA contexts its puts may use, 0..stripes-1: the knob of that name, 1 where there is none."""
        return int(dict(self.knobs).get("stripes", 1))

    def buffer(self, name: str) -> Buffer:
        return next(b for b in self.buffers if b.name == name)

    def flag(self, name: str) -> Flag:
        return next(f for f in self.flags if f.name == name)


@dataclass(frozen=True, slots=True)
class Statement:
    """An op under its loops and conditions: a family whose integer points are the concrete ops. `blocks` are the enclosing bodies, outermost first."""

    op: Op
    loops: tuple[Loop, ...]
    conds: tuple[Cond, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The family's indices beside the rank: the call, then the loops."""
        return ("e", *(l.name for l in self.loops))


def statements(program: Program) -> tuple[Statement, ...]:
    """All ops with their loops and conditions, in the order of the text."""

    def walk(items: tuple[Item, ...], loops: tuple[Loop, ...], conds: tuple[Cond, ...]) -> Iterator[Statement]:
        for item in items:
            if isinstance(item, Op):
                yield Statement(item, loops, conds)
            elif isinstance(item, Loop):
                yield from walk(item.body, (*loops, item), conds)
            else:
                yield from walk(item.body, loops, (*conds, item.cond))

    return tuple(walk(program.body, (), ()))


def jsonable(value: object) -> object:
    """Program data as JSON values: enums as their values, spots as file and line, expressions as nested lists."""
    if isinstance(value, (Expr, Cond)):
        return to_json(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Spot):
        return [str(value), *map(str, value.via)]
    if isinstance(value, tuple):
        return [jsonable(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        return {"is": type(value).__name__.lower(), **{f: jsonable(getattr(value, f)) for f in value.__dataclass_fields__}}
    assert isinstance(value, (int, str, bool)), type(value)
    return value


def canonical(value: object) -> str:
    """Canonical JSON: sorted keys, no spaces, ASCII."""
    return json.dumps(jsonable(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(program: Program) -> str:
    """sha256 of the program's canonical JSON."""
    return hashlib.sha256(canonical(program).encode()).hexdigest()
