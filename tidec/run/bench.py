"""Plans beside stock, measured between processes of this machine: the ranks are started here, watched, and ended with this one.

Each rank (`bench_rank.py`) tells on a pipe of its own what it does, a line of JSON each, and rank 0 what was measured. Where a rank ends before its time, or
nobody says anything for too long, all are ended and the first one that had trouble is named. Nothing that they share has a name in a file system.
"""
from __future__ import annotations

import json
import os
import selectors
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tidec.errors import Diagnostic, TidecError
from tidec.plan.ir import Plan
from tidec.run.compare import Difference

# How long the others may say why once a rank has ended before its time, and what a rank may need beside its waits: to load torch, for one.
GRACE_S, _START_S = 3.0, 60.0
_TAIL_BYTES, _READ_BYTES = 2000, 1 << 16


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of the result. plan: its digest.  group: the name to print.  ctas: of each sum on a GPU; 0 where no kernel runs."""

    plan: str
    group: str
    ctas: int


@dataclass(frozen=True, slots=True)
class BenchJob:
    """What is measured. plans: of as many ranks, all of them.  library: built for the target from plans that hold these.  rt: the folder of tidec_rt.

    calls: in one measurement.  environment: of the ranks.  deadline_s: of every wait.
    """

    plans: tuple[Plan, ...]
    library: Path
    rt: Path
    target: str
    measures: tuple[Measure, ...]
    calls: int
    rounds: int
    seed: int
    deadline_s: float
    environment: Mapping[str, str]

    @property
    def ranks(self) -> int:
        """N."""
        return self.plans[0].ranks

    def name(self, rank: int) -> str:
        """A rank by node and lane."""
        return "rank {}.{}".format(*divmod(rank, self.plans[0].lanes))


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured on. copy_gbps: GB/s of one copy to the peer while nothing else moves; on the host of one core, from memory to memory."""

    gpus: tuple[str, ...]
    cores: int
    torch: str
    cuda: str
    nccl: str
    copy_gbps: float


@dataclass(frozen=True, slots=True)
class Side:
    """Of the plan or of stock: seconds of a call on the slowest rank, one a round; and of the host to enqueue it, none where the host does all of it."""

    seconds: tuple[float, ...]
    host_seconds: tuple[float, ...]

    @property
    def us(self) -> float:
        """The median of a call."""
        return statistics.median(self.seconds) * 1e6

    @property
    def host_us(self) -> float | None:
        """The median of the host's part; `None` = it is all of the call."""
        return statistics.median(self.host_seconds) * 1e6 if self.host_seconds else None


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    size_bytes: as nccl-tests has it, what all ranks have together: the gathered parameters, or one rank's gradients, padding counted.
    checked: what the bits were held against.  difference: the first that differs; `None` = all are equal.
    """

    measure: Measure
    collective: str
    dtype: str
    size_bytes: int
    ranks: int
    plan: Side
    stock: Side
    checked: str
    difference: Difference | None

    @property
    def algorithm_gbps(self) -> float:
        """nccl-tests' algbw: size over time."""
        return self.size_bytes / self.plan.us / 1e3

    @property
    def bus_gbps(self) -> float:
        """nccl-tests' busbw: algbw * (N - 1) / N, for both collectives."""
        return self.algorithm_gbps * (self.ranks - 1) / self.ranks

    @property
    def ratio(self) -> float:
        """How many times as long stock takes."""
        return self.stock.us / self.plan.us


@dataclass(frozen=True, slots=True)
class Bench:
    """What came of a job."""

    machine: Machine
    rows: tuple[Row, ...]


Watch = Callable[[Bench], None]


@dataclass(slots=True)
class _Rank:
    """A process. at: what it said last that it does.  stops: why it says that it stops; `None` = it does not say."""

    process: subprocess.Popen
    line: int
    said: object
    at: str = "starts"
    stops: Diagnostic | None = None
    rest: bytes = b""
    rows: list[Row] = field(default_factory=list)
    machine: Machine | None = None


def run_bench(job: BenchJob, *, watch: Watch = lambda bench: None) -> Bench:
    """Measure. watch: is given what there is whenever a row has come. Raises R001 where a rank stops, ends or is silent; what a rank raises."""
    with ExitStack() as stack:
        store, plans = _memory("tidec-bench-store", b"", stack), _memory("tidec-bench-plans", json.dumps([p.to_json() for p in job.plans]).encode(), stack)
        ranks: list[_Rank] = []
        stack.callback(_end, ranks)
        for r in range(job.ranks):
            ranks.append(_start(job, r, (store, plans), stack))
        _follow(job, ranks, watch)
        assert len(ranks[0].rows) == len(job.measures), ranks[0].rows
        return _bench(ranks[0])


def _bench(rank: _Rank) -> Bench:
    assert rank.machine is not None
    return Bench(rank.machine, tuple(rank.rows))


def _memory(name: str, content: bytes, stack: ExitStack) -> int:
    """A file that has no name in any file system."""
    file = os.memfd_create(name, os.MFD_CLOEXEC)
    stack.callback(os.close, file)
    written = 0
    while written < len(content):
        written += os.pwrite(file, content[written:], written)
    return file


def _start(job: BenchJob, r: int, files: tuple[int, int], stack: ExitStack) -> _Rank:
    read, write = os.pipe()
    stack.callback(os.close, read)
    os.set_blocking(read, False)
    said = stack.enter_context(tempfile.TemporaryFile())
    told = json.dumps({
        "plans": files[1], "library": os.fspath(job.library), "rt": os.fspath(job.rt), "target": job.target, "measures": [asdict(m) for m in job.measures],
        "calls": job.calls, "rounds": job.rounds, "seed": job.seed, "deadline_s": job.deadline_s, "rank": r, "ranks": job.ranks, "store": files[0], "line": write, "parent": os.getpid()})
    path = os.pathsep.join(p for p in (str(Path(__file__).resolve().parents[2]), job.environment.get("PYTHONPATH", "")) if p)
    try:
        process = subprocess.Popen((sys.executable, "-P", "-m", "tidec.run.bench_rank", told), pass_fds=(*files, write), stdin=subprocess.DEVNULL, stdout=said,
                                   stderr=subprocess.STDOUT, env={"OMP_NUM_THREADS": "1", **job.environment, "PYTHONPATH": path})
    finally:
        os.close(write)
    return _Rank(process, read, said)


def _end(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        rank.process.kill()
    for rank in ranks:
        rank.process.wait()


def _follow(job: BenchJob, ranks: Sequence[_Rank], watch: Watch) -> None:
    """Until all ranks have ended well. Raises R001, or what a rank raises."""
    patience = 2 * job.deadline_s + _START_S
    ended: list[int] = []
    until = time.monotonic() + patience
    with selectors.DefaultSelector() as waiting, ExitStack() as opened:
        for r, rank in enumerate(ranks):
            waiting.register(rank.line, selectors.EVENT_READ, (r, False))
            handle = os.pidfd_open(rank.process.pid)
            opened.callback(os.close, handle)
            waiting.register(handle, selectors.EVENT_READ, (r, True))
        while len(ended) < len(ranks):
            found = waiting.select(max(0.0, until - time.monotonic()))
            if not found:
                break
            # What ranks have said comes before that they ended.
            for key, _ in sorted(found, key=lambda f: f[0].data[1]):
                r, is_end = key.data
                is_news = _read(job, ranks[r], watch)
                if is_end:
                    waiting.unregister(key.fd)
                    ranks[r].process.wait()
                    ended.append(r)
                elif not is_news:
                    waiting.unregister(key.fd)
            has_trouble = any(ranks[r].process.returncode for r in ended)
            until = min(until, time.monotonic() + GRACE_S) if has_trouble else time.monotonic() + patience
    if len(ended) < len(ranks) or any(rank.process.returncode for rank in ranks):
        raise _trouble(job, ranks, ended, patience)


def _read(job: BenchJob, rank: _Rank, watch: Watch) -> bool:
    """Take what a rank has said by now; False where it will say no more."""
    while True:
        try:
            raw = os.read(rank.line, _READ_BYTES)
        except BlockingIOError:
            return True
        if not raw:
            return False
        *lines, rank.rest = (rank.rest + raw).split(b"\n")
        for line in lines:
            _take(job, rank, json.loads(line), watch)


def _take(job: BenchJob, rank: _Rank, said: Mapping, watch: Watch) -> None:
    rank.at = said.get("at", rank.at)
    if "stops" in said:
        rank.stops = Diagnostic(**said["stops"])
    if "machine" in said:
        rank.machine = Machine(**{**said["machine"], "gpus": tuple(said["machine"]["gpus"])})
    if "row" in said:
        rank.rows.append(_row(job, said["row"]))
        watch(_bench(rank))


def _row(job: BenchJob, said: Mapping) -> Row:
    sides = {name: Side(tuple(s["seconds"]), tuple(s["host_seconds"])) for name, s in said["sides"].items()}
    difference = None if said["difference"] is None else Difference(**said["difference"])
    return Row(job.measures[said["number"]], said["collective"], said["dtype"], said["size_bytes"], job.ranks, sides["plan"], sides["stock"], said["checked"], difference)


def _trouble(job: BenchJob, ranks: Sequence[_Rank], ended: Sequence[int], patience: float) -> TidecError:
    """Why a job did not end: of the first rank that had trouble, those last that stopped because another one had."""
    failed = [r for r in ended if ranks[r].process.returncode]
    names = [job.name(r) for r in range(len(ranks))]
    where = [f"{names[r]}: {rank.at}" for r, rank in enumerate(ranks)]
    if not failed:
        silent = ", ".join(names[r] for r in range(len(ranks)) if r not in ended)
        return TidecError(Diagnostic("R001", f"{silent} said nothing for {patience:.0f} s, and all ranks were ended", reason="; ".join(where),
                                     help="give --deadline SECONDS where a call takes so long"))
    first = min(failed, key=lambda r: (ranks[r].process.returncode > 0, ranks[r].stops is not None and " stops because " in ranks[r].stops.sentence, failed.index(r)))
    rank = ranks[first]
    others = [f"{names[r]}: {ranks[r].stops.sentence}" for r in failed if r != first and ranks[r].stops is not None]
    others += [f"{names[r]} did not end, and was killed" for r in range(len(ranks)) if r not in ended]
    if rank.process.returncode < 0:
        sentence = f"{names[first]} was killed by signal {-rank.process.returncode}"
    elif rank.stops is None:
        sentence = f"{names[first]} ended with {rank.process.returncode}"
        others = [*_tail(rank), *others]
    elif rank.stops.code != "R001":
        return TidecError(rank.stops)
    else:
        sentence, others = f"{names[first]} stops: {rank.stops.sentence}", [*filter(None, [rank.stops.reason]), *others]
    return TidecError(Diagnostic("R001", sentence, reason="; ".join((*others, *where)), help="look at the rank that is named; the others were ended with it"))


def _tail(rank: _Rank) -> list[str]:
    """The last line that a process printed."""
    file = rank.said
    file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
    return [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()][-1:]
