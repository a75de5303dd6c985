"""How long a call takes that all ranks make together, and beside it another: rounds in both orders, of each the slowest rank.

On the host: wall time from a common start to the end of a rank's last call. On a GPU: the calls are enqueued behind a kernel that holds the stream until all
are there, so that the host's time is outside; events around the calls measure them, and the host's time to enqueue them is measured by itself.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from tidec.errors import Diagnostic, TidecError

_FIRST_CYCLES, _MOST_CYCLES, _NAP_S = 8_000_000, 4_000_000_000, 0.0002


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds of one call on this rank; of the host to enqueue it, 0 where the host does all of it."""

    seconds: float
    host_seconds: float = 0.0


class Timer(Protocol):
    """Measures calls one after the other; all ranks do at the same point. control: a process group of the host's, for barriers."""

    def __call__(self, call: Callable[[], object], calls: int) -> Took: ...


class Wall:
    """Of calls that are over when they return."""

    def __init__(self, control: dist.ProcessGroup):
        self._control = control

    def __call__(self, call: Callable[[], object], calls: int) -> Took:
        dist.barrier(self._control)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return Took((time.perf_counter() - start) / calls)


class Gate:
    """Of calls that enqueue work on the current stream of a GPU.

    Raises R001 where not all of them can be enqueued before the gate has to open, and as `finish`.
    """

    def __init__(self, control: dist.ProcessGroup, device: torch.device, *, deadline_s: float, why: Callable[[], None]):
        self._control, self._cycles, self._meeting, self._deadline_s, self._why = control, _FIRST_CYCLES, torch.zeros(1, device=device), deadline_s, why

    def __call__(self, call: Callable[[], object], calls: int) -> Took:
        while True:
            finish(self._deadline_s, self._why)
            dist.barrier(self._control)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(self._cycles)
            # Kernels of the ranks begin at different times; from here on they are together.
            dist.all_reduce(self._meeting)
            start.record()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            host = time.perf_counter() - begin
            is_held = not start.query()
            end.record()
            finish(self._deadline_s, self._why)
            if all(_gathered(is_held, self._control)):
                return Took(start.elapsed_time(end) / 1e3 / calls, host / calls)
            self._cycles *= 2
            if self._cycles > _MOST_CYCLES:
                raise TidecError(Diagnostic("R001", f"{calls} calls cannot be enqueued before they begin", reason="the stream's queue is full, and the host waits for room in it",
                                            help="give --calls with a smaller number"))


def finish(deadline_s: float, why: Callable[[], None]) -> None:
    """Wait for the current GPU. why: raises where it knows why the stream does not end. Raises R001 at the deadline."""
    over = torch.cuda.Event()
    over.record()
    until = time.monotonic() + deadline_s
    while not over.query():
        if time.monotonic() > until:
            why()
            raise TidecError(Diagnostic("R001", f"what was enqueued is not over after {deadline_s:g} s", help="give --deadline SECONDS where a call takes so long"))
        time.sleep(_NAP_S)
    torch.cuda.synchronize()


def rounds(
    timer: Timer, sides: Mapping[str, Callable[[], object]], *, calls: int, num: int, control: dist.ProcessGroup, tell: Callable[[int], None],
) -> dict[str, tuple[Took, ...]]:
    """Of each of two sides the slowest rank's times, one a round, after one round that is not counted; the first side begins every other round.

    tell: is called with the number of each round as it begins, 0 for the one that warms up.
    """
    found: dict[str, list[Took]] = {name: [] for name in sides}
    for i in range(num + 1):
        tell(i)
        for name, call in (sides.items() if i % 2 else reversed(sides.items())):
            took = timer(call, calls)
            if i:
                found[name].append(took)
    every = _gathered(found, control)
    return {name: tuple(_slowest([one[name][i] for one in every]) for i in range(num)) for name in sides}


def _slowest(every: Sequence[Took]) -> Took:
    """The parts of two ranks may be put together: each says how long one has to wait for it."""
    return Took(max(t.seconds for t in every), max(t.host_seconds for t in every))


def _gathered(mine: object, control: dist.ProcessGroup) -> list:
    every: list = [None] * control.size()
    dist.all_gather_object(every, mine, group=control)
    return every
