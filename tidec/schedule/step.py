"""Two collectives as one program: a step is written like a schedule, and issues the walks of others between its own ops.

n node, j lane, e call. A part keeps its ops, loops and order; its buffers, flags and streams get a prefix. The relative order of one part's ops is what it
was, so that what was proved of the part stands, and only what two parts do to each other is left to prove.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tidec.index import symbol
from tidec.schedule.branch import specialise
from tidec.schedule.program import Cell, Coord, Event, Item, Kind, Op, OpKind, Program, Promise, Raise, Stream
from tidec.schedule.references import BufferName, CellRef, FlagName, ScheduleError
from tidec.schedule.tracer import Schedule

PHASE = "what"      # the loop that no part has: which content a use of a shared buffer means


def prefixed(program: Program, start: str, first_id: int = 0) -> Program:
    """The program with other names of its buffers, flags and streams, and other numbers of its ops."""
    def cell(c: Cell) -> Cell:
        return replace(c, buffer=start + c.buffer)

    def promise(p: Promise) -> Promise:
        return replace(p, flag=start + p.flag)

    def op(x: Op) -> Op:
        return replace(x, id=first_id + x.id, stream=start + x.stream, reads=tuple(map(cell, x.reads)), writes=tuple(map(cell, x.writes)),
                       raises=tuple(replace(r, promise=promise(r.promise)) for r in x.raises), waits=tuple(map(promise, x.waits)))

    return replace(
        program, body=each_op(program.body, op), buffers=tuple(replace(b, name=start + b.name) for b in program.buffers),
        flags=tuple(replace(f, name=start + f.name) for f in program.flags), streams=tuple(Stream(start + s.name, s.role) for s in program.streams),
    )


def each_op(items: tuple[Item, ...], change: Callable[[Op], Op]) -> tuple[Item, ...]:
    """The items with every op changed."""
    return tuple(change(x) if isinstance(x, Op) else replace(x, body=each_op(x.body, change)) for x in items)


@dataclass(slots=True)
class Part:
    """A collective of a step, of one branch of M.

    reads, network: the two phases of its walk, before the first op of a stream that reads no input, and from there on.
    uses, behind_uses: what its walk begins with of the caller's use of its outputs, nothing where that comes last, and the rest.
    """

    program: Program
    prefix: str
    shared: dict[str, BufferName] = field(default_factory=dict)
    moved: dict[str, CellRef] = field(default_factory=dict)

    @property
    def reads(self) -> tuple[Item, ...]:
        return self.program.body[: self._behind(set(self.readers))]

    @property
    def network(self) -> tuple[Item, ...]:
        return self.program.body[self._behind(set(self.readers)) :]

    @property
    def uses(self) -> tuple[Item, ...]:
        return self.program.body[: self._behind(self._users())]

    @property
    def behind_uses(self) -> tuple[Item, ...]:
        return self.program.body[self._behind(self._users()) :]

    @property
    def readers(self) -> tuple[str, ...]:
        """The streams that read the inputs or free them, in the order of the text."""
        inputs = {b.name for b in self.program.buffers if b.kind is Kind.INPUT}
        return tuple(dict.fromkeys(op.stream for op in _ops(self.program.body) if any(c.buffer in inputs for c in (*op.reads, *op.writes))))

    def _users(self) -> set[str]:
        return {op.stream for op in _ops(self.program.body) if op.kind is OpKind.READ}

    def _behind(self, streams: set[str]) -> int:
        """Where the walk has its first op of another stream."""
        return next((i for i, item in enumerate(self.program.body) if not {op.stream for op in _ops((item,))} <= streams), len(self.program.body))

    def buffer(self, name: str, *, source: Callable[..., tuple[Coord, Coord]]) -> BufferName:
        """A buffer of the part, which the step uses too: a use of it also says which content is meant, 1 where the part itself uses it.

        source: as in a declaration, of every content.
        """
        own = next((b for b in self.program.buffers if b.name == self.prefix + name), None)
        if own is None:
            raise ScheduleError(f"{self.prefix.rstrip('_')} has no buffer {name}")
        per = (*own.per, PHASE)
        whose = source(*(symbol("#" + d.name) for d in own.dims), *(symbol("@" + p) for p in per))
        self.shared[own.name] = BufferName(replace(own, per=per, found=(), source=tuple(whose)))
        return self.shared[own.name]

    def lies(self, names: tuple[str, ...], where: CellRef) -> None:
        """The part's inputs of these names lie in these blocks of another buffer, each of their own blocks in any of them. A branch has one of them at least."""
        inputs = {b.name for b in self.program.buffers if b.kind is Kind.INPUT}
        found = [self.prefix + name for name in names if self.prefix + name in inputs]
        if not found:
            raise ScheduleError(f"{self.prefix.rstrip('_')} has no input {' or '.join(names)}")
        self.moved |= dict.fromkeys(found, where)


class Step(Schedule):
    """What a step writes to: a schedule, with its two parts."""

    def __init__(self, name: str, source_file: str, shown_file: str, *, gather: Program, reduce: Program, single_node: bool, is_played: bool = False):
        """single_node: which branch of the two programs. is_played: an op reads its moved input as well as the blocks that it lies in, so that the interpreter knows what it holds."""
        super().__init__(name, gather.lanes, source_file, shown_file)
        self._is_played = is_played
        self.gather, self.reduce = (
            Part(prefixed(specialise(p, single_node), start), start) for p, start in ((gather, "ag_"), (reduce, "rs_")))

    def issue(self, items: tuple[Item, ...], *, freed: FlagName | None = None) -> None:
        """The ops of a part, in their order. freed: the flag that is raised where the part lets its moved input be overwritten."""
        moved = self.gather.moved | self.reduce.moved
        shared = self.gather.shared | self.reduce.shared

        def cell(c: Cell) -> Cell:
            if c.buffer in shared:
                return replace(c, use=(*c.use, 1))
            if c.buffer in moved:
                return replace(self._cell(moved[c.buffer]), node=c.node, lane=c.lane, call=c.call)
            return c

        def op(x: Op) -> Op:
            self._num_ops += 1
            if x.kind is OpKind.FREE and x.writes[0].buffer in moved:
                if freed is None:
                    raise ScheduleError(f"{x.writes[0].buffer} is freed, and no flag says so: issue(..., freed=flag)")
                return replace(x, id=self._num_ops - 1, kind=OpKind.SIGNAL, writes=(), raises=(Raise(Event.END, self._promise(freed)),))
            reads = tuple(map(cell, x.reads))
            if self._is_played and any(c.buffer in moved for c in x.reads):
                reads = (*x.reads, *(new for c, new in zip(x.reads, reads) if c.buffer in moved))
            return replace(x, id=self._num_ops - 1, reads=reads, writes=tuple(map(cell, x.writes)))

        self._body += each_op(items, op)
        self._streams += [name for name in dict.fromkeys(op.stream for op in _ops(items)) if name not in self._streams]

    def _finish(self, knobs: Mapping[str, int | str]) -> Program:
        parts = (self.gather, self.reduce)
        self._buffers += [part.shared[b.name].buffer if b.name in part.shared else b for part in parts for b in part.program.buffers
                          if self._is_played or b.name not in part.moved]
        self._flags += [f for part in parts for f in part.program.flags]
        whole = super()._finish({**dict(self.gather.program.knobs), **dict(self.reduce.program.knobs), **knobs})
        return replace(whole, premises=tuple(dict.fromkeys(p for part in parts for p in part.program.premises)))


def _ops(items: tuple[Item, ...]) -> list[Op]:
    return [op for x in items for op in ([x] if isinstance(x, Op) else _ops(x.body))]
