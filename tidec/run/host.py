"""A plan on the host target: one process a rank over shared memory, or all ranks in this process.

N ranks, r rank, e call. The objects of shared memory have no name (memfd), so nothing is left of a job, whatever ends it. Inputs are written into
them and outputs read from them here; workers (`worker.py`) map them and run the emitted program. What a worker has to say comes by a file of that kind too: its stdout is
whoever's that prints.
"""
from __future__ import annotations

import json
import mmap
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from tidec.errors import Diagnostic, Spot, TidecError, bytes_text
from tidec.interpret.bits import Given, Outputs, zero_ranges
from tidec.plan.ir import Plan
from tidec.run import worker
from tidec.run.worker import Sizes, open_library

DEADLINE_S = 30.0
_POLL_S = 0.002
_SPOT = re.compile(r"^  at (\S+):(\d+)(?: from ([\d, ]+))?(?: \((\S+)\))?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HostJob:
    """What is run. library: a built bundle's, that holds the plan.

    num_seeds: runs, from seed first_seed on; each draws another interleaving, and seed 0 is the plain one.
    is_in_process: all ranks here, as threads or drawn one op after the other. is_one_process: the same in one process of its own.
    is_threaded: a thread a stream, else one a process. is_scalar: sums one value at a time. is_unread: landings stay in their arenas, and outputs say
    nothing. deadline_s: of every wait. entry: the library's function that runs ranks. sum_ctas, land_ctas: CTAs of one launch on a GPU. environment: of its processes; `None` = this one's.
    """

    library: Path
    plan: Plan
    given: Given
    alpha: float = 1.0
    accumulate: bool = False
    is_poisoned: bool = False
    first_seed: int = 0
    num_seeds: int = 1
    is_in_process: bool = False
    is_one_process: bool = False
    is_threaded: bool = False
    is_scalar: bool = False
    is_unread: bool = False
    deadline_s: float = DEADLINE_S
    entry: str = "tidec_host_run"
    sum_ctas: int = 16
    land_ctas: int = 8
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class HostRun:
    """What a job gave. outputs: of the last seed.  digests: of all outputs, one a seed.  seconds: a seed, from the common start to the last rank's end."""

    outputs: Outputs
    digests: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Worker:
    """A process. answer: the file in which it says what came of its ranks.  printed: what it, or a library in it, has printed."""

    process: subprocess.Popen
    answer: int
    printed: IO[bytes]

    def said(self) -> tuple[list[int], list[int], str]:
        """Digests, times and reason, once it has ended; what it printed is the reason where it said nothing."""
        try:
            said = json.loads(os.pread(self.answer, os.fstat(self.answer).st_size, 0))
            return said["digests"], said["nanoseconds"], said["why"]
        except ValueError:
            self.printed.seek(0)
            return [], [], self.printed.read().decode(errors="replace").strip()


class Running:
    """A job whose processes run. processes: one a rank."""

    def __init__(self, job: HostJob, objects: Objects, workers: Sequence[_Worker]):
        self.processes, self._workers, self._job, self._objects = tuple(w.process for w in workers), workers, job, objects

    def silence(self) -> float:
        """Seconds for which the most silent rank has neither moved nor looked; 0 before all have come."""
        return self._objects.silence()

    def finish(self) -> HostRun:
        """Wait for the end. Raises R001 where a rank stops, is killed, or is silent for longer than all deadlines."""
        job, ends = self._job, {}
        until = None
        while len(ends) < len(self.processes):
            for r, process in enumerate(self.processes):
                if r not in ends and process.poll() is not None:
                    ends[r] = process.returncode
            now = time.monotonic()
            if until is None and (any(ends.values()) or self._objects.silence() > 2 * job.deadline_s):
                until = now + job.deadline_s + 1.0
            if until is not None and now > until:
                break
            time.sleep(_POLL_S)
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()
        said = [w.said() for w in self._workers]
        if any(code for code in ends.values()) or len(ends) < len(self.processes) or not all(digests for digests, _, _ in said):
            raise stops(job, [ends.get(r) for r in range(len(self.processes))], [why for _, _, why in said])
        return self._objects.collect([digests for digests, _, _ in said], [nanoseconds for _, nanoseconds, _ in said])


def run_host(job: HostJob) -> HostRun:
    """Run a job to its end. Raises R001 where it stops; E002 where the library does not hold the plan; E004 where it has too many ranks; E008 where memory is missing."""
    if not job.is_in_process:
        with started(job) as running:
            return running.finish()
    with ExitStack() as stack:
        objects = Objects(job, stack)
        code, said = worker.run(objects.library, objects.told(range(job.plan.ranks)))
        if code:
            raise stops(job, [code], [said["why"]])
        return objects.collect([said["digests"]], [said["nanoseconds"]])


@contextmanager
def started(job: HostJob) -> Iterator[Running]:
    """A job with one process a rank, for this `with` block: none of them lives longer."""
    with ExitStack() as stack:
        objects = Objects(job, stack)
        workers: list[_Worker] = []
        try:
            for ranks in [range(job.plan.ranks)] if job.is_one_process else [range(r, r + 1) for r in range(job.plan.ranks)]:
                answer = os.memfd_create("tidec-answer", os.MFD_CLOEXEC)
                stack.callback(os.close, answer)
                printed = stack.enter_context(tempfile.TemporaryFile())
                told = json.dumps({**objects.told(ranks), "answer": answer})
                process = subprocess.Popen((sys.executable, "-I", "-S", worker.__file__, told), pass_fds=(*objects.files, answer), stdin=subprocess.DEVNULL, stdout=printed,
                                           stderr=subprocess.STDOUT, env=job.environment)
                workers.append(_Worker(process, answer, printed))
            yield Running(job, objects, workers)
        finally:
            for w in workers:
                w.process.kill()
            for w in workers:
                w.process.wait()


@dataclass(slots=True)
class Objects:
    """The shared memory of every rank, with what the calls are given written into it."""

    job: HostJob
    stack: ExitStack
    library: object = field(init=False)
    files: tuple[int, ...] = field(init=False)
    _number: int = field(init=False)
    _sizes: Sizes = field(init=False)
    _maps: list[mmap.mmap] = field(init=False)

    def __post_init__(self) -> None:
        job = self.job
        self.library = open_library(os.fspath(job.library))
        self._number = _program(self.library, job)
        self._sizes = Sizes()
        code = self.library.tidec_host_size(self._number, job.given.calls, self._sizes)
        if code == worker.STOPPED:
            raise _no_memory(job, "there is no more memory to reckon what its ranks share")
        if code:
            raise TidecError(Diagnostic("E004", f"no job of {job.plan.ranks:,} ranks and {job.given.calls:,} calls runs on one machine", help="ask for fewer nodes, or fewer calls"))
        self.files, self._maps = (), []
        for r in range(job.plan.ranks):
            try:
                self._map(r)
            except OSError as problem:
                raise _no_memory(job, f"rank {r} of {job.plan.ranks}, {bytes_text(self._sizes.object_bytes)} each: {problem.strerror}") from problem
            self._write(r)

    def _map(self, r: int) -> None:
        file = os.memfd_create(f"tidec-rank-{r}", os.MFD_CLOEXEC)
        self.stack.callback(os.close, file)
        os.ftruncate(file, self._sizes.object_bytes)
        self.files = (*self.files, file)
        # NOTE: never closed by hand: views of it may live, and it goes with the last of them.
        self._maps.append(mmap.mmap(file, self._sizes.object_bytes))

    def _write(self, r: int) -> None:
        given, s = self.job.given, self._sizes
        memory = np.frombuffer(self._maps[r], np.uint8)
        for e in range(given.calls):
            for p, raw in enumerate(given.inputs[e][r]):
                if raw.size:
                    at = s.inputs_at + e * s.input_bytes + self.library.tidec_host_input_at(self._number, p)
                    memory[at : at + raw.size] = raw
            at, before = s.before_at + e * s.output_bytes, given.before[e][r]
            memory[at : at + before.size] = before

    def told(self, ranks: range) -> dict:
        """What the worker of these ranks is told."""
        job = self.job
        return {
            "library": os.fspath(job.library), "entry": job.entry, "program": self._number, "calls": job.given.calls, "first_seed": job.first_seed, "num_seeds": job.num_seeds,
            "deadline_ms": max(1, round(1000 * job.deadline_s)), "alpha": job.alpha, "accumulate": job.accumulate, "threads": job.is_threaded,
            "scalar": job.is_scalar, "poison": job.is_poisoned, "unread": job.is_unread, "sum_ctas": job.sum_ctas, "land_ctas": job.land_ctas, "zero": zero_ranges(job.plan), "objects": self.files, "first_rank": ranks.start,
            "num_ranks": len(ranks), "parent": os.getpid(),
        }

    def silence(self) -> float:
        """Seconds for which the most silent rank has neither moved nor looked; 0 before all have come."""
        alive = [struct.unpack_from("<q", memory, 8)[0] for memory in self._maps]
        return (time.monotonic_ns() - min(alive)) / 1e9 if all(alive) else 0.0

    def collect(self, digests: Sequence[Sequence[int]], nanoseconds: Sequence[Sequence[int]]) -> HostRun:
        """What the ranks gave. One list of digests and times a process."""
        given, s = self.job.given, self._sizes

        def output(e: int, r: int) -> np.ndarray:
            at = s.outputs_at + e * s.output_bytes
            return np.frombuffer(self._maps[r], np.uint8)[at : at + given.before[e][r].size].copy()

        outputs = tuple(tuple(output(e, r) for r in range(self.job.plan.ranks)) for e in range(given.calls))
        together = [int(np.bitwise_xor.reduce(np.array(column, np.uint64))) for column in zip(*digests, strict=True)]
        return HostRun(outputs, tuple(together), tuple(max(column) / 1e9 for column in zip(*nanoseconds, strict=True)))


def _no_memory(job: HostJob, reason: str) -> TidecError:
    return TidecError(Diagnostic("E008", f"the {job.plan.collective.value.replace('_', '-')} cannot have its shared memory", reason=reason,
                                 help="ask for smaller groups, fewer nodes or fewer calls, or raise the limit (ulimit -a shows the limits)"))


def _program(library: object, job: HostJob) -> int:
    """The number of the plan in the library. Raises E002 where it has no such plan."""
    for i in range(library.tidec_num_programs()):
        if library.tidec_program_at(i).contents.plan_digest.decode() == job.plan.digest:
            return i
    raise TidecError(Diagnostic("E002", f"{job.library.name} does not hold plan {job.plan.digest[:12]}", reason="it was built from another bundle",
                                help="compile the bundle again with --target host"))


def stops(job: HostJob, ends: Sequence[int | None], reasons: Sequence[str]) -> TidecError:
    """What stopped a job. ends: exit codes, `None` of a process that had to be killed."""
    plan = job.plan
    names = ["the process of all ranks"] if len(ends) == 1 else [f"rank {r // plan.lanes}.{r % plan.lanes}" for r in range(plan.ranks)]
    killed = [f"{names[r]} was killed by signal {-code}" for r, code in enumerate(ends) if code is not None and code < 0]
    silent = [f"{names[r]} did not end, and was killed" for r, code in enumerate(ends) if code is None]
    first = [why for why in reasons if why and " stops because " not in why]
    head, _, rest = (first or [why for why in reasons if why] or ["a process ended without a word"])[0].partition("\n")
    group = f" of {json.dumps(plan.groups[0])}" if plan.groups else ""
    told = [line.strip() for line in rest.splitlines() if not _SPOT.match(line)]
    return TidecError(Diagnostic(
        "R001", f"the {plan.collective.value.replace('_', '-')}{group} stops: {head}", _spots(rest), reason="; ".join([*told, *killed, *silent]),
        help="look at the rank that is missing or silent; a proved plan waits for nothing that no rank does"))


def _spots(text: str) -> tuple[Spot, ...]:
    """The line of the schedule that a message names."""
    return tuple(
        Spot(file, int(line), via=tuple(Spot(file, int(v)) for v in reversed((via or "").split(", ")) if v)) for file, line, via, _ in _SPOT.findall(text)
    )
