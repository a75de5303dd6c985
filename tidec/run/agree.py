"""What the ranks of a process group must have in common: what they bring at install, and what each call of theirs does.

At install they exchange objects over the process group. At every call each rank writes a line, what it is about to do, on a board of shared memory;
once the call is over everybody has written it, and lines that differ stop the job: ranks that do different things would wait for each other.
Where ranks have to wait for each other after that, they meet on the board, and not over the process group: it has a deadline of its own, and no ear for Ctrl-C.
"""
from __future__ import annotations

import mmap
import os
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from tidec.errors import Diagnostic, TidecError

# Lines that a rank may be ahead of the slowest one. Where a rank waits for its collectives, one of all ranks stands between any two.
_LINES = 8
_LINE_BYTES = 512
_HEAD = struct.Struct("<qq")
# How long a rank that waits for others on the board sleeps between two looks, at first and at most.
_FIRST_NAP_S, _NAP_S = 0.0005, 0.02
# What torch says where a backend has no such collective.
_LACKING = ("does not support", "No backend type", "not implemented")


class Peers:
    """The ranks of a process group that shards, of which this is one, and its replicas: the groups in which hybrid sharding adds up what these ranks reduced.

    names: the ranks' numbers in the whole job, by which messages name them.
    """

    def __init__(self, group: dist.ProcessGroup, replicas: Sequence[dist.ProcessGroup] = ()):
        self.group, self.rank, self.size = group, group.rank(), group.size()
        self.names = tuple(dist.get_process_group_ranks(group))
        self._replicas = tuple(replicas)

    def gather(self, mine: object) -> list:
        """What every rank gives, in order of rank."""
        return _gathered(self.group, mine)

    def first(self, mine: object) -> object:
        """What rank 0 gives."""
        found = [mine]
        dist.broadcast_object_list(found, group_src=0, group=self.group)
        return found[0]

    def why_apart(self) -> str:
        """What the backend of these process groups lacks, so that ranks cannot tell each other anything; "" = nothing. The same on every rank."""
        for group in (self.group, *self._replicas):
            try:
                _gathered(group, None)
            except (AttributeError, NotImplementedError, TypeError, RuntimeError) as problem:
                # NOTE: RuntimeError is a rank that is gone too, and that is no lack of the backend.
                if isinstance(problem, RuntimeError) and not isinstance(problem, NotImplementedError) and not any(words in str(problem) for words in _LACKING):
                    raise
                return f"{type(problem).__name__}: {problem}"
        return ""

    def check_same(self, what: str, mine: str) -> None:
        """Raises F010 on every rank of these and of the replicas, naming the first rank that differs, both said."""
        values = self.gather(mine)
        # First among these ranks, then between replicas: all ranks of a group go into the second step with the same, and so come out with the same.
        found = next(((self.names[0], values[0], self.names[r], value) for r, value in enumerate(values) if value != values[0]), None)
        for replicas in self._replicas:
            others = _gathered(replicas, (found, self.names[0], values[0]))
            found = next((f for f, _, _ in others if f is not None), None) or next(
                ((*others[0][1:], rank, value) for _, rank, value in others if value != others[0][2]), None)
        if found is not None:
            rank, one, other_rank, other = found
            one, other = _difference(one, other)
            raise TidecError(Diagnostic("F010", f"ranks disagree about {what}", reason=f"rank {rank} has {one}, rank {other_rank} has {other}",
                                        help="build the same model, sharded alike, with the same arguments on every rank"))

    def first_trouble(self, mine: str) -> tuple[int, str] | None:
        """The first rank that has trouble, and which; `None` = nobody has. mine: "" where this rank has none."""
        return next(((self.names[r], said) for r, said in enumerate(self.gather(mine)) if said), None)

    def of_replicas(self, mine: object) -> object:
        """What these ranks have in common, or else the first replica that has any; `None` = none has."""
        for replicas in self._replicas:
            mine = next((said for said in [mine, *_gathered(replicas, mine)] if said is not None), None)
        return mine

    def is_one_machine(self) -> bool:
        """Whether all ranks can share memory: one host, one namespace of processes."""
        try:
            space = os.readlink("/proc/self/ns/pid")
        except OSError:
            space = ""
        return len(set(self.gather((socket.gethostname(), space)))) == 1


def _gathered(group: dist.ProcessGroup, mine: object) -> list:
    found: list = [None] * group.size()
    dist.all_gather_object(found, mine, group=group)
    return found


def _began(process: int) -> str:
    """When a process began, in the kernel's ticks; "" = there is none of that number, or only what is left of one."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    # The program's name may hold anything, but nothing behind it holds a bracket. Fields 3 and 22: the state, and when it began.
    fields = stat[stat.rindex(")") + 2 :].split()
    return "" if fields[0] in "ZX" else fields[19]


def _difference(one: str, other: str) -> tuple[str, str]:
    """Two texts around the place where they begin to differ, line by line."""
    for a, b in zip(one.splitlines(), other.splitlines()):
        if a != b:
            return a, b
    lines, others = one.splitlines(), other.splitlines()
    at = min(len(lines), len(others))
    return (lines[at] if at < len(lines) else "no more"), (others[at] if at < len(others) else "no more")


class Board:
    """Lines of every rank, in shared memory without a name. num_lines: how far a rank may be ahead of another."""

    def __init__(self, peers: Peers, *, num_lines: int = _LINES):
        self._peers, self._num_lines, self._checked = peers, num_lines, 0
        num_bytes = peers.size * num_lines * _LINE_BYTES
        file = os.memfd_create("tidec-board", os.MFD_CLOEXEC) if peers.rank == 0 else -1
        opened = -1
        try:
            if peers.rank == 0:
                os.ftruncate(file, num_bytes)
            place = peers.first(f"/proc/{os.getpid()}/fd/{file}")
            trouble = ""
            try:
                opened = os.open(place, os.O_RDWR | os.O_CLOEXEC)
                self._memory = mmap.mmap(opened, num_bytes)
            except OSError as problem:
                trouble = f"{place}: {problem.strerror}"
            # Everybody has mapped it, or nobody uses it, before rank 0 closes it.
            found = peers.first_trouble(trouble)
            # Each rank's process, and when it began: its number may be another's by the time it is looked at.
            self._processes = peers.gather((os.getpid(), _began(os.getpid())))
        finally:
            for f in (file, opened):
                if f >= 0:
                    os.close(f)
        if found is not None:
            raise TidecError(Diagnostic("F011", "the ranks cannot share memory", reason=f"rank {found[0]} cannot open the memory of rank 0: {found[1]}",
                                        help="run all ranks as one user in one container, or leave the collectives to stock"))
        self._number = 0

    def write(self, line: str) -> int:
        """Say what this rank does next; returns the number of the line."""
        number = self._number
        self._number = number + 1
        raw = line.encode("ascii", "replace")[: _LINE_BYTES - _HEAD.size]
        at = self._at(self._peers.rank, number)
        # NOTE: a rank far behind may be reading the line that stood here; without its number it reads nothing.
        self._memory[at : at + _HEAD.size] = _HEAD.pack(0, 0)
        self._memory[at + _HEAD.size : at + _HEAD.size + len(raw)] = raw
        self._memory[at : at + _HEAD.size] = _HEAD.pack(number + 1, len(raw))
        return number

    def check(self, number: int) -> None:
        """Raises F012 where a rank wrote another line than this one, of those up to that number that were not checked before; those that all have written count as checked."""
        self._checked = self.check_from(self._checked, number)

    def check_from(self, first: int, last: int | None = None) -> int:
        """The same of the lines from `first` to `last`, or to the newest; gives the first one that is not checked yet."""
        last = self._number - 1 if last is None else last
        for number in range(first, last + 1):
            lines = [self._read(r, number) for r in range(self._peers.size)]
            mine = lines[self._peers.rank]
            for r, theirs in enumerate(lines):
                if theirs and mine and theirs != mine:
                    raise TidecError(Diagnostic("F012", f"ranks do different things in collective {number}",
                                                reason=f"rank {self._peers.names[self._peers.rank]}: {mine}; rank {self._peers.names[r]}: {theirs}",
                                                help="use the same parameters and call tidec at the same points on every rank, in one order; FSDP2 hangs or gives wrong gradients where they differ"))
            if None in lines:
                return number
        return max(first, last + 1)

    def meet(self, place: str, deadline_s: float) -> None:
        """Say that this rank comes there next, and wait until all have said so. Signals are heard meanwhile.

        Raises F012 where a rank does something else, R001 where one has not come by the deadline, or its process has ended.
        """
        number, nap, until = self.write(place), _FIRST_NAP_S, time.monotonic() + deadline_s
        self.check(number)
        while self._checked <= number:
            missing = [r for r in range(self._peers.size) if self._read(r, number) is None]
            ended = [r for r in missing if nap == _NAP_S and _began(self._processes[r][0]) != self._processes[r][1]]
            is_late = time.monotonic() > until
            # What a rank wrote last of all, or while this one looked, counts.
            self.check(number)
            silent = [r for r in (missing if is_late else ended) if self._read(r, number) is None]
            if silent:
                names = ", ".join(str(self._peers.names[r]) for r in silent)
                what = f"rank {names} does" if len(silent) == 1 else f"ranks {names} do"
                why = [f"the process of rank {self._peers.names[r]} has ended" for r in ended if r in silent]
                raise TidecError(Diagnostic("R001", f"{what} not come to {place}" + ("" if ended else f" in {deadline_s:g} s"), reason="; ".join([*why, *self.where()]),
                                            help="look at the rank that is missing or silent"))
            time.sleep(nap)
            nap = min(2 * nap, _NAP_S)

    def where(self) -> tuple[str, ...]:
        """What each rank last said, in words."""
        said = []
        for r in range(self._peers.size):
            number = max((_HEAD.unpack_from(self._memory, self._at(r, n))[0] for n in range(self._num_lines)), default=0) - 1
            said.append(f"rank {self._peers.names[r]}: {self._read(r, number) or '' if number >= 0 else 'nothing yet'}")
        return tuple(said)

    def close(self) -> None:
        self._memory.close()

    def _at(self, rank: int, number: int) -> int:
        return (rank * self._num_lines + number % self._num_lines) * _LINE_BYTES

    def _read(self, rank: int, number: int) -> str | None:
        """A rank's line of that number; `None` where it has not written it yet, "" where it has gone on too far."""
        at = self._at(rank, number)
        seen, length = _HEAD.unpack_from(self._memory, at)
        if seen <= number:
            return None
        if seen != number + 1 or not 0 <= length <= _LINE_BYTES - _HEAD.size:
            return ""
        line = self._memory[at + _HEAD.size : at + _HEAD.size + length].decode("ascii", "replace")
        return line if _HEAD.unpack_from(self._memory, at)[0] == number + 1 else ""
