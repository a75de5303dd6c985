"""Kernels and collectives side by side, behind one gate on every rank: both collectives of a group, stock and by their plans, and windows of them.

A kernel is launched again and again on a stream of usual priority; calls of a collective are on an urgent one, as FSDP2's are.
"""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ranks import Opened, gathered

from tidec.inputs.ask import Collective
from tidec.run.beside import Here, beside
from tidec.run.bench_rank import connected
from tidec.run.timing import finish

Call = Callable[[], object]
# How many calls a window has at most, where they should go on until after its kernel.
MAX_CALLS = 240
_FIRST_CYCLES, _MOST_CYCLES = 16_000_000, 128_000_000


@dataclass(frozen=True, slots=True)
class Window:
    """Kernels and calls side by side on one rank. kernel_s: from the gate to the last launch's end, of all launches.  ends_s: when each call was over.

    is_held: all of it was enqueued before the gate opened.
    """

    kernel_s: float
    ends_s: tuple[float, ...]
    is_held: bool = True

    @property
    def is_covered(self) -> bool:
        """Whether calls went on until after the last launch."""
        return not self.ends_s or self.ends_s[-1] >= self.kernel_s

    @property
    def call_s(self) -> float:
        """Seconds of a call; 0 where there is none."""
        return self.ends_s[-1] / len(self.ends_s) if self.ends_s else 0.0


class Streams:
    """Windows of a GPU. why: raises where it knows why a stream does not end."""

    def __init__(self, here: Here, why: Call):
        self._here, self._why, self._cycles = here, why, _FIRST_CYCLES
        self._meeting, self._beside = torch.zeros(1, device=here.device), torch.cuda.Stream(here.device)

    def __call__(self, kernel: Call, launches: int, side: Call, calls: int) -> Window:
        while True:
            window = self._once(kernel, launches, side, calls)
            if all(gathered(window.is_held, self._here)) or self._cycles >= _MOST_CYCLES:
                return window
            self._cycles *= 2

    def _once(self, kernel: Call, launches: int, side: Call, calls: int) -> Window:
        finish(self._here.deadline_ms / 1000, self._why)
        dist.barrier(self._here.control)
        opened, begin, end, *ends = (torch.cuda.Event(enable_timing=True) for _ in range(3 + calls))
        torch.cuda._sleep(self._cycles)
        # Gates of the ranks open at different times; from here on they are together.
        dist.all_reduce(self._meeting)
        opened.record()
        self._beside.wait_event(opened)
        with torch.cuda.stream(self._beside):
            begin.record()
            for _ in range(launches):
                kernel()
            end.record()
        for over in ends:
            side()
            over.record()
        is_held = not opened.query()
        finish(self._here.deadline_ms / 1000, self._why)
        return Window(begin.elapsed_time(end) / 1e3 if launches else 0.0, tuple(opened.elapsed_time(e) / 1e3 for e in ends), is_held)


class Threads:
    """Windows of the host: calls are over when they return, so that another thread makes them."""

    def __init__(self, here: Here):
        self._here = here

    def __call__(self, kernel: Call, launches: int, side: Call, calls: int) -> Window:
        ends: list[float] = []
        dist.barrier(self._here.control)
        begin = time.perf_counter()

        def go_on() -> None:
            for _ in range(calls):
                side()
                ends.append(time.perf_counter() - begin)

        other = threading.Thread(target=go_on, daemon=True)
        other.start()
        for _ in range(launches):
            kernel()
        took = time.perf_counter() - begin
        other.join(self._here.deadline_ms / 1000)
        assert len(ends) == calls, f"{calls - len(ends)} of {calls} calls did not end"
        return Window(took if launches else 0.0, tuple(ends))


def nothing() -> None:
    pass


def windows_of(here: Here, nodes: Sequence) -> Callable[..., Window]:
    """How this rank makes windows of calls. nodes: which know why one does not end."""

    def why() -> None:
        for node in nodes:
            node.wait(1)

    return Streams(here, why) if here.is_cuda else Threads(here)


def covered(windows: Callable[..., Window], kernel: Call, launches: int, side: Call, calls: int, here: Here) -> tuple[list[Window], int]:
    """Windows of all ranks whose calls go on until after the last launch, or that have MAX_CALLS of them; and how many calls that took."""
    while True:
        every = gathered(windows(kernel, launches, side, calls), here)
        if all(w.is_covered for w in every) or calls >= MAX_CALLS:
            return every, calls
        calls = min(MAX_CALLS, 2 * calls)


@dataclass(frozen=True, slots=True)
class Side:
    """What goes on beside a kernel. bytes: that a rank receives in a call."""

    collective: str
    by: str
    ctas: int
    bytes: int
    call: Call

    @property
    def name(self) -> str:
        return f"{self.collective} {self.by}" + (f", {self.ctas} CTAs" if self.ctas else "")


def sides(found: Opened, group: str, ctas: Sequence[int], here: Here) -> tuple[list[Side], list]:
    """Both collectives of a group, stock and by their plans, the sums on so many CTAs and on as many as the bundle has; and the nodes, to be closed."""
    made, nodes, is_stock_there = [], [], set()
    for collective in Collective:
        plan, own = found.plan_of(group, collective)
        is_summed = here.is_cuda and collective is Collective.REDUCE_SCATTER
        for n in dict.fromkeys((*ctas, own)) if is_summed else (0,):
            nodes.append(connected(found.loaded, plan, max(1, n), here))
            both = beside(plan, nodes[-1], here)
            difference = both.check()
            assert difference is None, f"{collective.value} of {group}: {difference}"
            received = both.size_bytes * (plan.ranks - 1) // plan.ranks
            if collective not in is_stock_there:
                is_stock_there.add(collective)
                made.append(Side(collective.value, "stock", 0, received, both.stock))
            made.append(Side(collective.value, "plan", n, received, both.plan))
    return made, nodes
