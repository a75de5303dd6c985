"""How a schedule is written: a Python function over a `Schedule`, traced once into a `Program`.

A schedule runs once, with the node count, the rank, the call and the loop indices as
symbols: it is the text of one host program, each op tagged with the stream it goes to.
"""
from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from tidec.errors import Diagnostic, Spot, TidecError
from tidec.index import Cond, Index, Truth, symbol
from tidec.schedule.program import (
    Block, Buffer, Cell, Cover, Dim, Event, Flag, Item, Kind, Loop, Op, OpKind, Program, Promise, Raise, Scope, Step, Stream, When,
)
from tidec.schedule.references import BufferName, CellRef, FlagName, PromiseRef, ScheduleError

Flagged = PromiseRef | FlagName
Extents = Mapping[str, object]


class Schedule:
    """What a schedule writes to. nodes, here = (n, j) and call are symbols; lanes is an int."""

    def __init__(self, name: str, lanes: int, source_file: str, shown_file: str):
        self.lanes = lanes
        self.nodes = symbol("M")
        self.here = (symbol("n"), symbol("j"))
        self.call = symbol("e")
        self.single_node = self.nodes.eq(1)
        self._name, self._file, self._shown = name, source_file, shown_file
        self._buffers: list[Buffer] = []
        self._flags: list[Flag] = []
        self._streams: list[str] = []
        self._covers: list[Cover] = []
        self._premises: list[Cond] = []
        self._body: list[Item] = []
        self._loops: list[str] = []
        self._stream = ""
        self._num_ops = 0

    # ---- declarations

    def input(self, name: str, block: Block, /, **rest) -> BufferName:
        """A buffer that the caller hands in, another one in every call."""
        return self._declare(name, Kind.INPUT, block, **rest)

    def output(self, name: str, block: Block, /, **rest) -> BufferName:
        """A buffer that the caller reads."""
        return self._declare(name, Kind.OUTPUT, block, **rest)

    def buffer(self, name: str, block: Block, /, **rest) -> BufferName:
        """A buffer of the arena."""
        return self._declare(name, Kind.TEMP, block, **rest)

    def _declare(
        self, name: str, kind: Kind, what: Block, /, *, per: tuple[str, ...] = (), holds: Callable | None = None, source: Callable | None = None,
        rests_at_zero: bool = False, before: Callable | None = None, found: Callable | None = None, **extents: object,
    ) -> BufferName:
        dims = _dims(extents)
        cell = [symbol("#" + d.name) for d in dims]
        use = [symbol("@" + p) for p in per]

        def read(f: Callable | None, *args: Index) -> tuple:
            return () if f is None else tuple(f(*args))

        found_at = tuple(sorted(found(*cell).items())) if found else ()
        buffer = Buffer(
            name, kind, what, dims, per, rests_at_zero, read(holds, *cell, *use), read(source, *cell, *use),
            read(before, symbol("@e"), *use), found_at, self._spot(),
        )
        if any(b.name == name for b in self._buffers):
            raise ScheduleError(f"buffer {name} is declared twice")
        if rests_at_zero and not before:
            raise ScheduleError(f"buffer {name} rests at zero, so it must name the use before (before=)")
        self._buffers.append(buffer)
        return BufferName(buffer)

    def flag(self, name: str, scope: Scope = Scope.SELF, *, on: Extents | None = None, each: bool = False, **extents: object) -> FlagName:
        """An array of promises with a declared box per call; `on` keys choose the counter, the others are counted."""
        on_dims = _dims(on or {})
        keys = [symbol(d.name) for d in on_dims]
        flag = Flag(name, scope, on_dims, _dims(extents, keys), each, self._spot())
        if any(f.name == name for f in self._flags):
            raise ScheduleError(f"flag {name} is declared twice")
        self._flags.append(flag)
        return FlagName(flag)

    def covers(self, buffer: BufferName, ask: Extents, found: Callable) -> None:
        """Every ask lands in the buffer: found(...) gives the writer's rank and loops, and its `node`, `lane` and `cell`."""
        dims = _dims(ask)
        at = dict(found(*(symbol("#" + d.name) for d in dims)))
        node, lane, cell = at.pop("node"), at.pop("lane"), tuple(at.pop("cell"))
        self._covers.append(Cover(buffer.buffer.name, dims, tuple(sorted(at.items())), node, lane, cell, self._spot()))

    def only_for(self, cond: Truth) -> None:
        """A premise on M: a plan is made only for node counts where it holds."""
        if cond is not True:
            self._premises.append(cond)

    # ---- structure

    @contextmanager
    def stream(self, name: str) -> Iterator[None]:
        """The ops inside go to that stream."""
        if name not in self._streams:
            self._streams.append(name)
        outer, self._stream = self._stream, name
        yield
        self._stream = outer

    @contextmanager
    def when(self, cond: Truth) -> Iterator[None]:
        """The ops inside run where the condition holds."""
        outer, self._body = self._body, []
        spot = self._spot()
        yield
        body, self._body = tuple(self._body), outer
        if body and cond is not False:
            self._body += body if cond is True else (When(cond, body, spot),)

    def serial(self, name: str, lo: Index, hi: Index, at_most: int = 0) -> Iterator[Index]:
        """for name in lo..hi, in order."""
        return self._loop(name, lo, hi, Step.BY_ONE, at_most=at_most)

    def doubling(self, name: str, hi: Index) -> Iterator[Index]:
        """for name in 1, 2, 4, ... below hi, in order."""
        return self._loop(name, 1, hi, Step.DOUBLING)

    def each(self, name: str, lo: Index, hi: Index) -> Iterator[Index]:
        """An unordered set: its iterations may run in any order, at the same time; `join()` ends it."""
        return self._loop(name, lo, hi, Step.EACH)

    def run(self, name: str, lo: Index, hi: Index) -> Iterator[Index]:
        """An unordered set of copies whose addresses advance evenly: issued as one strided copy a parameter."""
        return self._loop(name, lo, hi, Step.RUN)

    def each_lane(self, name: str) -> Iterator[Index]:
        """Every lane of the node, as an unordered set."""
        return self._loop(name, 0, self.lanes, Step.EACH, over_lanes=True)

    def all_lanes(self, name: str) -> Iterator[Index]:
        """Every lane of the node, in order."""
        return self._loop(name, 0, self.lanes, Step.BY_ONE, over_lanes=True)

    def others(self, name: str) -> Iterator[Index]:
        """The other lanes of the node, in order; none where there is one lane."""
        if self.lanes == 1:
            return
        for o in self.all_lanes(name):
            with self.when(o.ne(self.here[1])):
                yield o

    def each_other(self, name: str) -> Iterator[Index]:
        """The other lanes of the node, as an unordered set; none where there is one lane."""
        if self.lanes == 1:
            return
        for o in self.each_lane(name):
            with self.when(o.ne(self.here[1])):
                yield o

    def _loop(self, name: str, lo: Index, hi: Index, step: Step, *, over_lanes: bool = False, at_most: int = 0) -> Iterator[Index]:
        if name in self._loops or name in ("M", "n", "j", "e"):
            raise ScheduleError(f"the loop index {name} is taken")
        self._loops.append(name)
        outer, self._body = self._body, []
        spot = self._spot()
        yield symbol(name)
        self._loops.pop()
        body, self._body = tuple(self._body), outer
        if body:
            self._body.append(Loop(name, lo, hi, step, over_lanes, at_most, body, spot))

    # ---- ops

    def copy(self, src: CellRef, dst: CellRef, **words: Index) -> None:
        """A copy engine moves the block inside the node."""
        self._op(OpKind.COPY, (src,), (dst,), words=words)

    def cast(self, src: CellRef, dst: CellRef) -> None:
        """The block in another dtype, on the same rank."""
        self._op(OpKind.CAST, (src,), (dst,))

    def put(self, src: CellRef, dst: CellRef, *, then: Flagged, done: Flagged, context: Index = 0, **words: Index) -> None:
        """The block goes to another node on the same rail, over an RMA context. `then`: it is visible there. `done`: the source may be reused."""
        self._op(OpKind.PUT, (src,), (dst,), raises=((Event.THEN, then), (Event.DONE, done)), words=words, context=context)

    def sum(self, staged: CellRef, own: CellRef, *, into: CellRef, seed: Truth = False, **words: Index) -> None:
        """fp32 sum of the staged blocks, lanes in order without the own one, then the own block, times alpha.

        seed: where it holds, the result is added to `into` if the caller accumulates.
        """
        self._op(OpKind.SUM, (staged, own), (into,), words=words, seed=seed)

    def land(self, src: CellRef, *, into: CellRef, seed: Truth = False) -> None:
        """into += the blocks at one offset of every lane of the node, summed in the lowering's order.

        seed: where it holds, `into` starts from what the caller accumulates into, or from zero.
        """
        self._op(OpKind.LAND, (src,), (into,), seed=seed)

    def zero(self, dst: CellRef) -> None:
        """The block becomes zero."""
        self._op(OpKind.ZERO, (), (dst,))

    def read(self, src: CellRef) -> None:
        """The caller's kernels read the blocks."""
        self._op(OpKind.READ, (src,), ())

    def free(self, *dsts: CellRef) -> None:
        """The caller may free or overwrite its input."""
        for dst in dsts:
            self._op(OpKind.FREE, (), (dst,))

    def signal(self, promise: Flagged) -> None:
        """The promise is kept once all earlier ops of the stream have ended."""
        self._op(OpKind.SIGNAL, (), (), raises=((Event.END, promise),))

    def wait(self, promise: Flagged) -> None:
        """The stream goes on once the promise is kept."""
        self._op(OpKind.WAIT, (), (), waits=(promise,))

    def join(self) -> None:
        """What follows on this stream comes after the unordered sets before it."""
        self._op(OpKind.JOIN, (), ())

    def meet(self, promise: Flagged, lane: str = "i") -> None:
        """A fence of the node: signals every lane, then waits for every lane."""
        n = self.here[0]
        for i in self.all_lanes(lane):
            self.signal(promise.at(n, i))
        for i in self.all_lanes(lane):
            self.wait(promise.by(n, i))

    def _op(
        self, kind: OpKind, reads: tuple[CellRef, ...], writes: tuple[CellRef, ...], *, raises: tuple[tuple[Event, Flagged], ...] = (),
        waits: tuple[Flagged, ...] = (), words: Mapping[str, Index] | None = None, seed: Truth = False,
        context: Index = 0,
    ) -> None:
        if not self._stream:
            raise ScheduleError(f"{kind.value} outside every stream: write it under `with s.stream(...)`")
        self._body.append(Op(
            self._num_ops, kind, self._stream, tuple(map(self._cell, reads)), tuple(map(self._cell, writes)),
            tuple(Raise(event, self._promise(p)) for event, p in raises), tuple(map(self._promise, waits)), tuple((words or {}).items()), seed, context,
            self._spot(),
        ))
        self._num_ops += 1

    def _cell(self, ref: CellRef) -> Cell:
        use = ref.use
        if isinstance(use, str):
            missing = [p for p in ref.buffer.per if p not in self._loops]
            if missing:
                raise ScheduleError(f"{ref.buffer.name} is used per {', '.join(ref.buffer.per)}, and no loop is named {missing[0]}: say which use with .of()")
            use = tuple(symbol(p) for p in ref.buffer.per)
        if len(use) != len(ref.buffer.per):
            raise ScheduleError(f"a use of {ref.buffer.name} is ({', '.join(ref.buffer.per)}), not {len(use)} values")
        node, lane = ref.rank or self.here
        return Cell(ref.buffer.name, ref.key, node, lane, ref.in_call[0] if ref.in_call else self.call, use)

    def _promise(self, ref: Flagged) -> Promise:
        if isinstance(ref, FlagName):
            ref = ref[()]
        node, lane = ref.rank or self.here
        return Promise(ref.flag.name, ref.key, node, lane, ref.in_call[0] if ref.in_call else self.call)

    def _spot(self) -> Spot:
        """The line of the schedule that is running, and the lines that called the helper it stands in."""
        lines = []
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self._file:
                lines.append((frame.f_lineno, frame.f_code.co_name))
                if frame.f_code.co_name == self._name:
                    break
            frame = frame.f_back
        spots = [Spot(self._shown, line, linecache.getline(self._file, line).strip()) for line, _ in lines]
        return replace(spots[0], via=tuple(reversed(spots[1:]))) if spots else Spot(self._shown, 0)

    def _finish(self, knobs: Mapping[str, int | str]) -> Program:
        if self._loops:
            raise ScheduleError(f"the loop over {self._loops[-1]} was left by break or return: a schedule runs every loop once, to its end")
        _check_joins(tuple(self._body))
        return Program(
            self._name, self.lanes, tuple(sorted(knobs.items())), tuple(self._buffers), tuple(self._flags), tuple(map(Stream, self._streams)),
            tuple(self._body), tuple(self._covers), tuple(self._premises),
        )


def _dims(extents: Extents, keys: list[Index] | None = None) -> tuple[Dim, ...]:
    """name=3 is 0..3, name=(lo, hi) is lo..hi, name=("x2", hi) the powers of two below hi; hi may be a function of the `on` keys."""
    dims = []
    for name, extent in extents.items():
        lo, hi = extent if isinstance(extent, tuple) else (0, extent)
        step = Step.DOUBLING if isinstance(lo, str) else Step.BY_ONE
        dims.append(Dim(name, 1 if step is Step.DOUBLING else lo, hi(*(keys or ())) if callable(hi) else hi, step))
    return tuple(dims)


def _streams_of(item: Item) -> set[str]:
    return {item.stream} if isinstance(item, Op) else set().union(*map(_streams_of, item.body))


def _check_joins(items: tuple[Item, ...], in_set: bool = False) -> None:
    """Every unordered set is of one stream and is joined in its block; the last one inside another set is joined with that."""
    for i, item in enumerate(items):
        if isinstance(item, Op):
            continue
        if isinstance(item, When):
            _check_joins(item.body, in_set)
            continue
        is_set = item.step in (Step.EACH, Step.RUN)
        _check_joins(item.body, is_set)
        if not is_set:
            continue
        streams = _streams_of(item)
        if len(streams) != 1:
            raise ScheduleError(f"the unordered set over {item.name} uses the streams {', '.join(sorted(streams))}; it may use one")
        later = [x for x in items[i + 1 :] if streams & _streams_of(x)]
        joined = any(isinstance(x, Op) and x.kind is OpKind.JOIN for x in later)
        if not joined and (later or not in_set):
            raise ScheduleError(f"the unordered set over {item.name} is not ended by a join() in its block")


def trace(function: Callable, name: str, lanes: int, source_file: str, shown_file: str, **knobs) -> Program:
    """The program that the schedule function writes for that lane count and those knobs. Raises P007 with the line."""
    return run_traced(Schedule(name, lanes, source_file, shown_file), function, **knobs)


def run_traced(s: Schedule, function: Callable, **knobs) -> Program:
    """The program that the function writes to `s`. Raises P007 with the line."""
    try:
        function(s, **knobs)
        return s._finish({k: v if isinstance(v, (int, str)) else str(v) for k, v in knobs.items()})
    except MISTAKES as problem:
        raise refusal(problem, s._file, s._shown) from problem


# What a schedule's own text can raise while it runs.
MISTAKES = (ScheduleError, ArithmeticError, AttributeError, ImportError, LookupError, NameError, RecursionError, TypeError, ValueError)


def refusal(problem: BaseException, source_file: str, shown_file: str) -> TidecError:
    """P007 with the innermost line of the schedule that the problem passed through."""
    lines = [f.lineno for f in traceback.extract_tb(problem.__traceback__) if f.filename == source_file]
    spot = Spot(shown_file, lines[-1], linecache.getline(source_file, lines[-1]).strip()) if lines else Spot(shown_file, 0)
    kind = "" if isinstance(problem, (ScheduleError, TypeError)) else f"{type(problem).__name__}: "
    return TidecError(Diagnostic("P007", f"{kind}{problem}", (spot,), help="the rules of the language stand in schedules/README.md"))
