#!/usr/bin/env python3
"""Waves that fill a GPU, and what their beginnings tell: which multiprocessors somebody else had, and for how long.

    TIDEC_CUDA_ARCH=9.0 python examples/measure/waves.py FOLDER        compiles waves.cu, whose head says what a wave is, into FOLDER; needs nvcc and no GPU
"""
from __future__ import annotations

import ctypes
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from tidec.build.cuda import find_tools  # noqa: E402
from tidec.build.toolchain import run_tool  # noqa: E402

NAME = "waves.so"
# How long a wave holds what it has, and the pause before it, in which whoever waits can begin.
HOLD_US, PAUSE_US = 20, 30
_HOST_PLACES = 4


@dataclass(frozen=True, slots=True)
class Wave:
    """One of them. ready_ns: when what went before it on its stream was over.  begins: of every CTA its multiprocessor, and when it began, in ns of the same clock."""

    ready_ns: int
    begins: tuple[tuple[int, int], ...]

    @property
    def last_us(self) -> float:
        """From ready to the beginning of the last CTA."""
        return (max(at for _, at in self.begins) - self.ready_ns) / 1e3

    def taken(self, multiprocessors: frozenset[int], within_us: float) -> dict[int, float]:
        """The multiprocessors on which no CTA began so soon after the first one, each with the microseconds until one did since the wave was ready; where none did, until the last one of all: it
        was taken at least so long.

        NOTE: a busy GPU begins a kernel later, on all of it at once. Where all are taken, the first to be free counts as never taken.
        """
        first: dict[int, float] = {}
        for where, at in self.begins:
            first[where] = min(first.get(where, self.last_us), (at - self.ready_ns) / 1e3)
        soonest = min(first.values())
        return {m: us for m in multiprocessors if (us := first.get(m, self.last_us)) - soonest > within_us}


@dataclass(frozen=True, slots=True)
class Idle:
    """Of waves beside nothing. us: how soon the last CTA begins, in the median.  multiprocessors: on which CTAs began."""

    us: float
    multiprocessors: frozenset[int]

    @property
    def within_us(self) -> float:
        """A multiprocessor on which a CTA begins so much later than on another was taken."""
        return 2 * self.us


def idle_of(waves: Sequence[Wave]) -> Idle:
    """What is not taken. Raises ValueError where waves begin so late that a CTA may be the second on its multiprocessor."""
    idle = Idle(statistics.median(w.last_us for w in waves), frozenset(m for w in waves for m, _ in w.begins))
    if idle.within_us > HOLD_US:
        raise ValueError(f"beside nothing the last CTA of a wave begins after {idle.us:.1f} us, and each holds its multiprocessor for {HOLD_US} us: nothing can be told of what is taken")
    return idle


def told_of(waves: Sequence[Wave], idle: Idle) -> dict[str, object]:
    """What waves say of whom they ran beside: how many multiprocessors were taken at once, which at any time, how long each (at least), and how much later the waves were whole."""
    taken = [w.taken(idle.multiprocessors, idle.within_us) for w in waves]
    late = [w.last_us - idle.us for w in waves]
    each = [us for found in taken for us in found.values()]
    most = max(map(len, taken))
    return {
        "waves": len(waves), "taken_median": statistics.median(map(len, taken)), "taken_mean": statistics.mean(map(len, taken)), "taken_most": most,
        "left_least": len(idle.multiprocessors) - most, "taken_us": statistics.median(each) if each else 0.0, "late_us": statistics.median(late), "late_most_us": max(late),
        "multiprocessors": sorted({m for found in taken for m in found})}


class GpuWaves:
    """Launches waves on the current stream of a GPU, and has what the last `num` of them saw. built: the folder of waves.so, compiled into another one where that is "".

    Raises E002 where it has to be compiled and cannot be.
    """

    def __init__(self, built: str, device: torch.device, num: int):
        with tempfile.TemporaryDirectory() as aside:
            folder = Path(built or aside)
            if not built:
                compile_into(folder)
            self._library = ctypes.CDLL(str(folder.resolve() / NAME))
        told = (ctypes.c_int * 3)()
        code = self._library.waves_prepare(told)
        assert code == 0, f"CUDA error {code}"
        self._num, self._next, (places, took, has) = num, 0, told
        assert took == has, f"a CTA takes {took} bytes of shared memory, and a multiprocessor has {has}: another CTA may run beside it"
        self._seen = torch.zeros(num, 1 + places, 3, dtype=torch.int64, device=device)

    def __call__(self) -> None:
        stream, into = torch.cuda.current_stream().cuda_stream, self._seen[self._next % self._num].data_ptr()
        code = self._library.waves_launch(ctypes.c_void_p(into), ctypes.c_int64(1000 * PAUSE_US), ctypes.c_int64(1000 * HOLD_US), ctypes.c_void_p(stream))
        assert code == 0, f"CUDA error {code}"
        self._next += 1

    def last(self) -> list[Wave]:
        """The last waves, which are over."""
        return [Wave(int(pause[2]), tuple((int(m), int(begin)) for m, begin, _ in ctas)) for pause, *ctas in self._seen.tolist()]


class HostWaves:
    """Waves of nothing, to see that a program runs where there is no GPU: the time of day, some times in a row."""

    def __init__(self, num: int):
        self._last: list[Wave] = []
        self._num = num

    def __call__(self) -> None:
        ready = time.perf_counter_ns()
        self._last = [*self._last, Wave(ready, tuple((place, time.perf_counter_ns()) for place in range(_HOST_PLACES)))][-self._num :]

    def last(self) -> list[Wave]:
        return self._last


def compile_into(folder: Path) -> None:
    """waves.so for the architecture that tools are for. Raises E002."""
    tools = find_tools()
    flags = ("-std=c++17", "-O2", f"-arch={tools.architecture}", "-shared", "-Xcompiler", "-fPIC,-fvisibility=hidden,-Wall,-Wextra")
    run_tool((*tools.nvcc.command, *flags, str(Path(__file__).with_suffix(".cu")), "-o", NAME), deadline_s=120, folder=folder)


if __name__ == "__main__":
    compile_into(Path(sys.argv[1]))
