"""What a schedule says when it names a block or a promise: buffer[key].at(rank), flag[key].by(rank)."""
from __future__ import annotations

from dataclasses import dataclass, replace

from tidec.index import Index
from tidec.schedule.program import Buffer, Coord, Flag

Rank = tuple[Index, Coord]


class ScheduleError(Exception):
    """A schedule that breaks a rule of the language; the message says which and where."""


@dataclass(frozen=True, slots=True)
class CellRef:
    """buffer[key], with the rank and the use that it may carry."""

    buffer: Buffer
    key: tuple[Coord, ...]
    rank: Rank | tuple[()] = ()
    use: tuple[Index, ...] | str = "from the loops"
    in_call: tuple[Index, ...] = ()

    def at(self, node: Index, lane: Coord) -> CellRef:
        """The block on that rank instead of the rank's own one; lane may be ALL (every lane of the node)."""
        return replace(self, rank=(node, lane))

    def of(self, *use: Index, call: Index | tuple[()] = ()) -> CellRef:
        """The block in that use, and that call, instead of the one that the surrounding loops name."""
        return replace(self, use=use, in_call=() if isinstance(call, tuple) else (call,))


@dataclass(frozen=True, slots=True)
class PromiseRef:
    """flag[key], with the rank that it is raised for or by, and the call."""

    flag: Flag
    key: tuple[Index, ...]
    rank: Rank | tuple[()] = ()
    in_call: tuple[Index, ...] = ()

    def at(self, node: Index, lane: Index) -> PromiseRef:
        """Raised for that rank."""
        return replace(self, rank=(node, lane))

    def by(self, node: Index, lane: Index) -> PromiseRef:
        """Raised by that rank."""
        return replace(self, rank=(node, lane))

    def call(self, e: Index) -> PromiseRef:
        """In that call."""
        return replace(self, in_call=(e,))


@dataclass(frozen=True, slots=True)
class BufferName:
    """A declared buffer; index it to name a block."""

    buffer: Buffer

    def __getitem__(self, key: Coord | tuple[Coord, ...]) -> CellRef:
        key = key if isinstance(key, tuple) else (key,)
        if len(key) != len(self.buffer.dims):
            raise ScheduleError(f"{self.buffer.name} has {len(self.buffer.dims)} dimensions, not {len(key)}")
        return CellRef(self.buffer, key)

    def count(self, dim: int) -> Index:
        """How many indices a dimension has."""
        return self.buffer.dims[dim].hi - self.buffer.dims[dim].lo


@dataclass(frozen=True, slots=True)
class FlagName:
    """A declared flag; index it, or use it whole where it has no keys."""

    flag: Flag
    in_call: tuple[Index, ...] = ()

    def __getitem__(self, key: Index | tuple[Index, ...]) -> PromiseRef:
        key = key if isinstance(key, tuple) else (key,)
        if len(key) != len(self.flag.dims):
            raise ScheduleError(f"{self.flag.name} has {len(self.flag.dims)} keys, not {len(key)}")
        return PromiseRef(self.flag, key, in_call=self.in_call)

    def call(self, e: Index) -> FlagName:
        """The flag in that call."""
        return replace(self, in_call=(e,))

    def at(self, node: Index, lane: Index) -> PromiseRef:
        return self[()].at(node, lane)

    def by(self, node: Index, lane: Index) -> PromiseRef:
        return self[()].by(node, lane)
