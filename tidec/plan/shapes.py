"""Which programs a plan can carry out: the form of every buffer, access and promise, checked before anything is made of them.

A schedule that the language accepts may still ask for a move between blocks that the layout cannot pair, and a stored plan may be anything.
"""
from __future__ import annotations

from tidec.errors import Diagnostic, Spot, TidecError
from tidec.index import Node, Op as Sign, symbols, text
from tidec.plan.arena import PACKED
from tidec.schedule.program import (
    ALL, OTHERS, Block, Buffer, Cell, Coord, Event, Every, Item, Kind, Loop, Op, OpKind, Program, Promise, Step, statements,
)

_COPIES = {(Block.SHARD, Block.PLACED), (Block.GRAD_SLICE, Block.SLICE), (Block.GRAD_ROW, Block.ROW), *((b, b) for b in PACKED)}
_SUMS = {(Block.SLICE, Block.GRAD_SLICE, Block.PARTIAL), (Block.ROW, Block.GRAD_ROW, Block.OUT_ROW)}
# Of each kind: how many blocks it reads and writes, what it raises, and how many promises it waits for.
_COUNTS: dict[OpKind, tuple[int, int, tuple[Event, ...], int]] = {
    OpKind.COPY: (1, 1, (), 0), OpKind.CAST: (1, 1, (), 0), OpKind.PUT: (1, 1, (Event.THEN, Event.DONE), 0), OpKind.SUM: (2, 1, (), 0),
    OpKind.LAND: (1, 1, (), 0), OpKind.ZERO: (0, 1, (), 0), OpKind.READ: (1, 0, (), 0), OpKind.FREE: (0, 1, (), 0),
    OpKind.SIGNAL: (0, 0, (Event.END,), 0), OpKind.WAIT: (0, 0, (), 1), OpKind.JOIN: (0, 0, (), 0),
}


# Of each block that is not packed: the kinds of buffers that it may be in, and their number of dimensions while blocks are whole.
_PLACES: dict[Block, tuple[tuple[Kind, ...], int]] = {
    Block.PLACED: ((Kind.OUTPUT, Kind.TEMP), 3), Block.GRAD_SLICE: ((Kind.INPUT,), 3), Block.GRAD_ROW: ((Kind.INPUT,), 2),
    Block.OUT_SLICE: ((Kind.OUTPUT,), 2), Block.OUT_ROW: ((Kind.OUTPUT,), 1),
}
# The blocks that a program cuts into chunks: their last two dimensions are then a stripe, and a chunk of it.
_CUT = (Block.GRAD_SLICE, Block.GRAD_ROW, Block.PARTIAL, Block.OUT_SLICE, Block.OUT_ROW)


def check_program(program: Program) -> None:
    """Check that every buffer and op of a program has a form that `blocks.py` places.

    Raises V105 with the line of the buffer or op, V402 with that of a strided run that does not advance evenly.
    """
    names = [x.name for x in (*program.buffers, *program.flags)]
    knobs = dict(program.knobs)
    chunks, stripes = int(knobs.get("chunks", 1)), int(knobs.get("stripes", 1))
    cut = (stripes, chunks // stripes) if chunks > 1 else ()
    for buffer in program.buffers:
        _check_buffer(buffer, cut if buffer.block in _CUT else ())
    for x in (*program.buffers, *program.flags):
        if names.count(x.name) > 1:
            raise _fault(x.spot, f"two buffers or flags are called {x.name}", "names must differ")
    _check_ops(program, len(cut))
    _check_loops(program.body, {b.name for b in program.buffers if b.block in (Block.GRAD_SLICE, Block.GRAD_ROW)})


def _check_buffer(b: Buffer, cut: tuple[int, ...]) -> None:
    kinds, num_dims = _PLACES.get(b.block, ((Kind.OUTPUT, Kind.TEMP), len(b.dims)))
    if b.block is Block.SHARD and b.kind is Kind.INPUT:
        kinds, num_dims = (Kind.INPUT,), 1
    if b.kind not in kinds or len(b.dims) != num_dims + (len(cut) if b.block in _PLACES else 0) or len(b.dims) <= len(cut):
        raise _fault(b.spot, f"no layout has the buffer {b.name}", f"{len(b.dims)} dimensions of {b.block.value} blocks, as {b.kind.value}")
    if cut and tuple((d.lo, d.hi) for d in b.dims[-len(cut):]) != tuple((0, x) for x in cut):
        raise _fault(b.spot, f"no layout has the buffer {b.name}", f"its blocks are cut into {cut[0]} stripes of {cut[1]} chunks, and its last two dimensions are not")
    if any(d.step is not Step.BY_ONE for d in b.dims):
        raise _fault(b.spot, f"no layout has the buffer {b.name}", "an index of it does not advance by one")


def _check_ops(program: Program, num_cut: int) -> None:
    buffers, streams = {b.name: b for b in program.buffers}, {s.name for s in program.streams}
    has_cast = bool(dict(program.knobs).get("cast", False))
    for statement in statements(program):
        op = statement.op
        got = (len(op.reads), len(op.writes), tuple(r.event for r in op.raises), len(op.waits))
        if got != _COUNTS[op.kind]:
            raise _unfit(op, "it reads, writes, raises or awaits something else than ops of its kind do")
        if op.stream not in streams:
            raise _unfit(op, f'there is no stream "{op.stream}"')
        for cell in (*op.reads, *op.writes):
            if cell.buffer not in buffers or len(cell.key) != len(buffers[cell.buffer].dims):
                raise _unfit(op, f"it names no block of {cell.buffer}")
        for promise in (*(r.promise for r in op.raises), *op.waits):
            _check_promise(program, op, promise)
        # With a cast the resident shard is in the stored types: the cast reads it, and no move does.
        reads_shard = any(buffers[c.buffer].kind is Kind.INPUT and buffers[c.buffer].block is Block.SHARD for c in op.reads)
        if op.kind is OpKind.CAST and not (reads_shard and has_cast) or op.kind in (OpKind.COPY, OpKind.PUT) and reads_shard and has_cast:
            raise _unfit(op, "only a cast reads a shard in the types it is stored in, and only under the argument cast")
        if not _is_paired(op, tuple(buffers[c.buffer].block for c in (*op.reads, *op.writes)), num_cut):
            names = " and ".join(f"{c.buffer} ({buffers[c.buffer].block.value})" for c in (*op.reads, *op.writes))
            raise _unfit(op, f"no layout has this move between {names}")


def _is_paired(op: Op, blocks: tuple[Block, ...], num_cut: int) -> bool:
    cells = (*op.reads, *op.writes)
    parts = [_whole(cell, num_cut if block is Block.PARTIAL else 0) for cell, block in zip(cells, blocks)]
    match op.kind:
        case OpKind.COPY:
            return blocks in _COPIES and not isinstance(cells[0].lane, Every) and cells[1].lane is not OTHERS and -1 < parts[0] == parts[1]
        case OpKind.PUT:
            return blocks in _COPIES and blocks[0] in PACKED and blocks[0] is blocks[1] and not any(isinstance(c.lane, Every) for c in cells) and -1 < parts[0] == parts[1]
        case OpKind.CAST:
            return blocks == (Block.SHARD, Block.SHARD) and all(map(_is_one, cells))
        case OpKind.SUM:
            staged, own, into = cells
            whole = [k for k in staged.key if isinstance(k, Every)]
            return blocks in _SUMS and whole == [OTHERS] and not isinstance(staged.lane, Every) and _is_one(own) and _is_one(into)
        case OpKind.LAND:
            src, into = cells
            return (
                blocks == (Block.PARTIAL, Block.OUT_SLICE) and src.lane is ALL and not isinstance(into.lane, Every)
                and _whole(src, num_cut + 1) == _whole(into, num_cut + 1) == num_cut + 1
            )
        case OpKind.ZERO:
            return blocks[0] in PACKED and not isinstance(cells[0].lane, Every) and parts[0] > -1
        case OpKind.READ | OpKind.FREE:
            return not isinstance(cells[0].lane, Every) and _is_range(cells[0], blocks[0])
    return True


def _is_one(cell: Cell) -> bool:
    return not any(isinstance(k, Every) for k in (*cell.key, cell.lane))


def _whole(cell: Cell, at_most: int) -> int:
    """How many of its last dimensions an access names as a whole; -1 where it names another one so, or more of them than it may."""
    whole = [isinstance(k, Every) for k in cell.key]
    count = sum(whole)
    return count if whole == sorted(whole) and count <= at_most and not any(k is OTHERS for k in cell.key) else -1


def _is_range(cell: Cell, block: Block) -> bool:
    """Whether the access names bytes without a gap: all gradients, a whole landing, or a block or the last dimensions of a packed buffer."""
    whole = [isinstance(k, Every) for k in cell.key]
    if any(k is OTHERS for k in cell.key) or block in (Block.OUT_SLICE, Block.OUT_ROW):
        return False
    if block in (Block.GRAD_SLICE, Block.GRAD_ROW):
        return all(whole)
    return whole == [False, True, True] if block is Block.PLACED else whole == sorted(whole)


def _check_promise(program: Program, op: Op, promise: Promise) -> None:
    flags = [f for f in program.flags if f.name == promise.flag]
    if not flags or len(promise.key) != len(flags[0].dims):
        raise _unfit(op, f"it names no promise of {promise.flag}")
    if any(d.step is not Step.BY_ONE for d in flags[0].box):
        raise _unfit(op, f"{promise.flag} counts a key that does not advance by one; write it under on=")


def _check_loops(items: tuple[Item, ...], gradients: set[str]) -> None:
    for item in items:
        if isinstance(item, Op):
            continue
        if isinstance(item, Loop) and item.step is Step.DOUBLING and not (isinstance(item.lo, int) and item.lo >= 1):
            raise _fault(item.spot, f"the loop over {item.name} cannot double", "it must start from an int of at least 1")
        if isinstance(item, Loop) and item.step is Step.RUN:
            _check_run(item, gradients)
        _check_loops(item.body, gradients)


def _check_run(loop: Loop, gradients: set[str]) -> None:
    """A strided run is one copy whose blocks advance evenly and apart: its rank and call stay, and in each block one index grows by a fixed step."""
    if len(loop.body) != 1 or not isinstance(loop.body[0], Op) or loop.body[0].kind is not OpKind.COPY:
        raise _uneven(f"the run over {loop.name} holds something else than one copy", loop.spot)
    op = loop.body[0]
    for cell in (*op.reads, *op.writes):
        if cell.buffer in gradients:
            raise _uneven(f"the run over {loop.name} reads gradients, whose rows are strided already", op.spot)
        if loop.name in (*symbols(cell.node), *symbols(cell.lane), *symbols(cell.call)):
            raise _uneven(f"the run over {loop.name} does not stay on one rank and in one call of {cell.buffer}", op.spot)
        slopes = [slope for k in cell.key if (slope := _slope(k, loop.name, op.spot))]
        if len(slopes) != 1 or slopes[0] < 1:
            raise _uneven(f"the run over {loop.name} does not advance through {cell.buffer} by one growing index", op.spot)


def _slope(x: Coord, name: str, spot: Spot) -> int:
    """By how much an expression grows with an index that is only added, subtracted and multiplied by an int in it."""
    if not isinstance(x, Node) or name not in symbols(x):
        return 0
    if x.op is Sign.SYM:
        return 1
    if x.op is Sign.MUL:
        return x.args[0] * _slope(x.args[1], name, spot)
    if x.op in (Sign.ADD, Sign.SUB):
        return _slope(x.args[0], name, spot) + (1 if x.op is Sign.ADD else -1) * _slope(x.args[1], name, spot)
    raise _uneven(f"an index of the run is not linear in {name}", spot, reason=text(x))


def _uneven(sentence: str, spot: Spot, *, reason: str = "") -> TidecError:
    """The refusal of a strided run whose copies are not one strided copy."""
    return TidecError(Diagnostic("V402", sentence, spots=(spot,), reason=reason, help="use each() for copies that do not advance evenly"))


def _unfit(op: Op, reason: str) -> TidecError:
    return _fault(op.spot, f"no plan carries out this {op.kind.value}", reason)


def _fault(spot: Spot, sentence: str, reason: str) -> TidecError:
    return TidecError(Diagnostic("V105", sentence, spots=(spot,), reason=reason, help="write it with the blocks and promises that the schedules in schedules/ use"))
