"""Which faults a program can have: every small change that somebody might make by mistake, each with its kind.

M nodes, L lanes, n node, j lane, e call. A fault is data: the checkers are run on the program that it gives. READ and FREE are what the caller does, so
they are never dropped; what a buffer holds is the contract, so it is never changed. Some changes are harmless: which ones is for the checkers to say.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from tidec.index import Cond, Expr, Node, Op as IndexOp, no, symbol, symbols, wrap
from tidec.index import text as spelt
from tidec.interpret.edits import Placed, Role, Site, body_at, placed, rewrites, sites, with_items, with_promises
from tidec.schedule.program import ALL, OTHERS, Buffer, Dim, Every, Flag, Item, Loop, Op, OpKind, Program, Scope, Step, When


class Kind(Enum):
    """What somebody got wrong."""

    WAIT_DROPPED = "wait dropped"
    SIGNAL_DROPPED = "signal dropped"
    JOIN_DROPPED = "join dropped"
    ZERO_DROPPED = "zero dropped"
    MOVE_DROPPED = "copy, put, sum or landing dropped"
    OP_REPEATED = "op issued twice"
    OP_SKIPPED = "op skipped on one rank or trip"
    GUARD_DROPPED = "guard dropped"
    GUARD_NEGATED = "guard negated"
    BLOCK_OFF = "block one off"
    PLACE_OFF = "node or lane one off"
    PLACE_TURNED = "next node or lane"
    BANK_FIXED = "one bank or generation"
    BANK_FLIPPED = "other bank or generation"
    USE_OFF = "use one off"
    CONTENT_OFF = "contents of another call"
    CELLS_SWAPPED = "source and destination swapped"
    WHOLE_CHANGED = "other blocks of a whole dimension"
    KEY_OFF = "promise one off"
    RAISER_TURNED = "raiser or receiver of a promise next to the right one"
    PEER_REVERSED = "peer in the other direction"
    CALL_OFF = "wait on another call"
    EVENTS_SWAPPED = "then and done swapped"
    SCOPE_CHANGED = "flag of another scope"
    COUNTERS_MERGED = "one counter for all"
    BOX_OFF = "declared box one off"
    EACH_CHANGED = "counter or event a key"
    BUFFER_SHORT = "buffer one block short"
    SEED_CHANGED = "seed changed"
    LOOP_SHORT = "loop starts late or ends early"
    LOOP_LONG = "loop starts early or ends late"
    LOOP_UNORDERED = "ordered loop made an unordered set"
    SET_ORDERED = "unordered set made an ordered loop"
    STREAM_CHANGED = "op on another stream"
    ORDER_SWAPPED = "two neighbours swapped"
    CONSTANT_OFF = "constant in an expression one off"
    COMPARISON_CHANGED = "comparison changed"
    CASES_SWAPPED = "cases of a choice swapped"


@dataclass(frozen=True, slots=True)
class Fault:
    """One change. apply: the changed program; it expects the program that the fault was made from."""

    kind: Kind
    description: str
    apply: Callable[[Program], Program]


def faults(program: Program) -> tuple[Fault, ...]:
    """All faults of a program, in the order of its text. Descriptions differ."""
    found: list[Fault] = []
    for at in placed(program):
        for kind, words, items in _of_item(program, at):
            found.append(Fault(kind, f"{_name(at.item)}: {words}", partial(_replaced, at.path, items)))
        found += _order(program, at)
    for flag in program.flags:
        found += _of_flag(program, flag)
    for buffer in program.buffers:
        for d, dim in enumerate(buffer.dims):
            short = replace(buffer, dims=(*buffer.dims[:d], replace(dim, hi=dim.hi - 1), *buffer.dims[d + 1 :]))
            found.append(Fault(Kind.BUFFER_SHORT, f"{buffer.name}: {dim.name} below {spelt(dim.hi - 1)}", partial(_with_buffer, short)))
    times: Counter[str] = Counter()
    for i, fault in enumerate(found):
        times[fault.description] += 1
        if (nth := times[fault.description]) > 1:
            found[i] = replace(fault, description=f"{fault.description} ({nth})")
    return tuple(found)


Change = tuple[Kind, str, tuple[Item, ...]]
_CALLERS = (OpKind.READ, OpKind.FREE)
_M, _n, _j, _e = symbol("M"), symbol("n"), symbol("j"), symbol("e")


def _name(item: Item) -> str:
    lines = ">".join(str(spot.line) for spot in (*item.spot.via, item.spot))
    spot = f"{item.spot.file.rpartition('/')[2]}:{lines}"
    return f"{item.kind.value} {spot}" if isinstance(item, Op) else f"for {item.name} {spot}" if isinstance(item, Loop) else f"when {spot}"


def _replaced(path: tuple[int, ...], items: tuple[Item, ...], program: Program) -> Program:
    return with_items(program, path, items)


def _of_item(program: Program, at: Placed) -> Iterator[Change]:
    item = at.item
    if isinstance(item, Op):
        yield from _of_op(program, at, item)
    elif isinstance(item, When):
        yield Kind.GUARD_DROPPED, f"always, not only where {spelt(item.cond)}", item.body
        yield Kind.GUARD_NEGATED, f"where {spelt(no(item.cond))}", (replace(item, cond=no(item.cond)),)
    else:
        yield from _of_loop(item)
    for site in sites(item):
        for kind, new in _of_site(program, item, site):
            yield kind, f"{site.words} {spelt(new)}, not {spelt(site.tree)}", (site.put(new),)


# ---- ops


def _of_op(program: Program, at: Placed, op: Op) -> Iterator[Change]:
    dropped = {OpKind.WAIT: Kind.WAIT_DROPPED, OpKind.SIGNAL: Kind.SIGNAL_DROPPED, OpKind.JOIN: Kind.JOIN_DROPPED, OpKind.ZERO: Kind.ZERO_DROPPED}
    if op.kind not in _CALLERS:
        yield dropped.get(op.kind, Kind.MOVE_DROPPED), "dropped", ()
        yield Kind.OP_REPEATED, "issued twice", (op, op)
        for words, cond in _sometimes(program, at):
            yield Kind.OP_SKIPPED, words, (When(cond, (op,), op.spot),)
        for stream in program.streams:
            if stream.name != op.stream:
                yield Kind.STREAM_CHANGED, f"on {stream.name}, not {op.stream}", (replace(op, stream=stream.name),)
    if op.kind in (OpKind.COPY, OpKind.PUT, OpKind.CAST) and not isinstance(op.writes[0].lane, Every):
        yield Kind.CELLS_SWAPPED, "from its destination to its source", (replace(op, reads=op.writes, writes=op.reads),)
    if op.kind is OpKind.PUT:
        a, b = op.raises
        yield Kind.EVENTS_SWAPPED, "then and done swapped", (replace(op, raises=(replace(a, event=b.event), replace(b, event=a.event))),)
    if op.kind is OpKind.SUM:
        for i, cell in enumerate(op.reads):
            for d, k in enumerate(cell.key):
                if isinstance(k, Every):
                    other = ALL if k is OTHERS else OTHERS
                    new = replace(cell, key=(*cell.key[:d], other, *cell.key[d + 1 :]))
                    yield Kind.WHOLE_CHANGED, f"{cell.buffer} {other.value}, not {k.value}", (replace(op, reads=(*op.reads[:i], new, *op.reads[i + 1 :])),)


def _sometimes(program: Program, at: Placed) -> Iterator[tuple[str, Cond]]:
    """Conditions under which an op may have been forgotten."""
    yield "not on node 0", _n.ne(0)
    yield "only on node 0", _n.eq(0)
    yield "not on the last node", _n.ne(_M - 1)
    yield "only in every second call", (_e % 2).eq(0)
    if program.lanes > 1:
        yield "not on lane 0", _j.ne(0)
        yield "not on the last lane", _j.ne(program.lanes - 1)
    for loop in at.loops:
        x = symbol(loop.name)
        yield f"not in the first trip over {loop.name}", x.ne(loop.lo)
        yield f"only in the first trip over {loop.name}", x.eq(loop.lo)
        if loop.step is not Step.DOUBLING:
            yield f"not in the last trip over {loop.name}", x.ne(loop.hi - 1)


# ---- loops


def _of_loop(loop: Loop) -> Iterator[Change]:
    yield Kind.LOOP_SHORT, "ends early", (replace(loop, hi=loop.hi - 1),)
    yield Kind.LOOP_LONG, "ends late", (replace(loop, hi=loop.hi + 1),)
    # Every doubling loop starts at 1: the language has no other.
    if loop.step is not Step.DOUBLING:
        yield Kind.LOOP_SHORT, "starts late", (replace(loop, lo=loop.lo + 1),)
        yield Kind.LOOP_LONG, "starts early", (replace(loop, lo=loop.lo - 1),)
    if loop.step in (Step.EACH, Step.RUN):
        yield Kind.SET_ORDERED, "an ordered loop", (replace(loop, step=Step.BY_ONE),)
    elif loop.step is Step.BY_ONE and len(_streams(loop)) == 1:
        yield Kind.LOOP_UNORDERED, "an unordered set", (replace(loop, step=Step.EACH),)


def _streams(item: Item) -> set[str]:
    return {item.stream} if isinstance(item, Op) else set().union(*map(_streams, item.body))


def _order(program: Program, at: Placed) -> Iterator[Fault]:
    """The item and the next one of its body, the other way round."""
    body, i = body_at(program, at.path), at.path[-1]
    if i + 1 < len(body):
        a, b = body[i], body[i + 1]
        yield Fault(Kind.ORDER_SWAPPED, f"{_name(a)} after {_name(b)}", partial(_swapped, at.path, (b, a)))


def _swapped(path: tuple[int, ...], pair: tuple[Item, Item], program: Program) -> Program:
    return with_items(program, path, pair, num=2)


# ---- expressions


_PLACES = (Role.NODE, Role.LANE)
_PROMISED = (Role.RAISED_FOR, Role.RAISED_BY)


def _of_site(program: Program, item: Item, site: Site) -> Iterator[tuple[Kind, object]]:
    tree, role = site.tree, site.role
    if role in (Role.LOW, Role.HIGH) or (isinstance(item, Op) and item.kind is OpKind.SIGNAL and role is Role.CALL):
        pass
    elif role is Role.GUARD or role is Role.SEED:
        yield from ((Kind.SEED_CHANGED, x) for x in (True, False) if role is Role.SEED and tree is not x)
        if role is Role.SEED and isinstance(tree, Node):
            yield Kind.SEED_CHANGED, no(tree)
    elif role is Role.CALL:
        yield from ((Kind.CALL_OFF, x) for x in (tree + 1, tree - 1, tree - 2))
    elif role in _PROMISED or role in _PLACES:
        is_lane = role is Role.LANE or site.words.endswith("lane")
        size = program.lanes if is_lane else _M
        if not is_lane or program.lanes > 1:
            turned = (tree + 1) % size if is_lane else wrap(tree + 1, _M)
            yield (Kind.RAISER_TURNED if role in _PROMISED else Kind.PLACE_TURNED), turned
        if role in _PLACES:
            yield from ((Kind.PLACE_OFF, x) for x in (tree + 1, tree - 1))
    else:
        kind = {Role.BLOCK: Kind.BLOCK_OFF, Role.USE: Kind.USE_OFF, Role.CONTENT: Kind.CONTENT_OFF, Role.KEY: Kind.KEY_OFF}[role]
        yield from ((kind, x) for x in (tree + 1, tree - 1))
    if role in (Role.BLOCK, Role.NODE, Role.LANE, Role.RAISED_FOR, Role.RAISED_BY, Role.KEY, Role.SEED, Role.LOW, Role.HIGH, Role.GUARD):
        yield from ((kind, x) for kind, change in _DEEP for x in rewrites(tree, change))


def _one_bank(x: object) -> Iterator[object]:
    if isinstance(x, Node) and x.op is IndexOp.MOD and x.args[1] == 2:
        yield 0


def _other_bank(x: object) -> Iterator[object]:
    if isinstance(x, Node) and x.op is IndexOp.MOD and x.args[1] == 2:
        yield (x.args[0] + 1) % 2


def _reversed(x: object) -> Iterator[object]:
    """n + c becomes n - c under wrap, and the other way round under back."""
    if isinstance(x, Node) and x.op in (IndexOp.WRAP, IndexOp.BACK) and isinstance(inner := x.args[0], Node) and inner.op in (IndexOp.ADD, IndexOp.SUB):
        ahead = inner.op is IndexOp.SUB
        yield Expr(IndexOp.WRAP if ahead else IndexOp.BACK, Expr(IndexOp.ADD if ahead else IndexOp.SUB, *inner.args), x.args[1])


def _constant(x: object) -> Iterator[object]:
    """A constant that stands beside an operator, one more or one less; a divisor stays at least 1."""
    if isinstance(x, Node) and x.op in (IndexOp.ADD, IndexOp.SUB, IndexOp.MUL, IndexOp.DIV, IndexOp.MOD, IndexOp.LT, IndexOp.LE, IndexOp.EQ):
        for i, a in enumerate(x.args):
            for new in (a + 1, a - 1) if type(a) is int else ():
                if not (x.op in (IndexOp.DIV, IndexOp.MOD, IndexOp.MUL) and new < 1):
                    yield type(x)(x.op, *(new if k == i else y for k, y in enumerate(x.args)))


def _comparison(x: object) -> Iterator[object]:
    if isinstance(x, Node) and x.op in (IndexOp.LT, IndexOp.LE):
        yield Cond(IndexOp.LE if x.op is IndexOp.LT else IndexOp.LT, *x.args)
    elif isinstance(x, Node) and x.op is IndexOp.EQ:
        yield Cond(IndexOp.LE, *x.args)
    elif isinstance(x, Node) and x.op in (IndexOp.AND, IndexOp.OR):
        yield Cond(IndexOp.OR if x.op is IndexOp.AND else IndexOp.AND, *x.args)


def _cases(x: object) -> Iterator[object]:
    if isinstance(x, Node) and x.op is IndexOp.ITE:
        yield Expr(IndexOp.ITE, x.args[0], x.args[2], x.args[1])


_DEEP: tuple[tuple[Kind, Callable[[object], Iterator[object]]], ...] = (
    (Kind.BANK_FIXED, _one_bank), (Kind.BANK_FLIPPED, _other_bank), (Kind.PEER_REVERSED, _reversed), (Kind.CONSTANT_OFF, _constant),
    (Kind.COMPARISON_CHANGED, _comparison), (Kind.CASES_SWAPPED, _cases),
)


# ---- declarations


def _with_flag(flag: Flag, program: Program) -> Program:
    return replace(program, flags=tuple(flag if f.name == flag.name else f for f in program.flags))


def _with_buffer(buffer: Buffer, program: Program) -> Program:
    return replace(program, buffers=tuple(buffer if b.name == buffer.name else b for b in program.buffers))


def _merged(flag: Flag, program: Program) -> Program:
    """The flag without the keys that choose its counter, there and in every promise."""
    merged = _with_flag(replace(flag, on=()), program)
    return with_promises(merged, lambda p: replace(p, key=p.key[len(flag.on) :]) if p.flag == flag.name else p)


def _of_flag(program: Program, flag: Flag) -> Iterator[Fault]:
    for scope in Scope:
        if scope is not flag.scope:
            yield Fault(Kind.SCOPE_CHANGED, f"{flag.name}: {scope.value}, not {flag.scope.value}", partial(_with_flag, replace(flag, scope=scope)))
    if flag.on and not any(_names(d, {x.name for x in flag.on}) for d in flag.box):
        yield Fault(Kind.COUNTERS_MERGED, f"{flag.name}: one counter for all {', '.join(d.name for d in flag.on)}", partial(_merged, flag))
    if flag.box:
        yield Fault(Kind.EACH_CHANGED, f"{flag.name}: {'counted' if flag.each else 'one event a key'}", partial(_with_flag, replace(flag, each=not flag.each)))
    for d, dim in enumerate(flag.box):
        for words, lo, hi in (("longer", dim.lo, dim.hi + 1), ("shorter", dim.lo, dim.hi - 1), ("one up", dim.lo + 1, dim.hi)):
            box = (*flag.box[:d], replace(dim, lo=lo, hi=hi), *flag.box[d + 1 :])
            yield Fault(Kind.BOX_OFF, f"{flag.name}: {dim.name} {words}", partial(_with_flag, replace(flag, box=box)))


def _names(dim: Dim, names: set[str]) -> bool:
    return bool(names & {*symbols(dim.lo), *symbols(dim.hi)})
