"""Jobs of several processes for the tests of this folder: started together, watched, and ended together."""
from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# How long the others may go on once a rank has failed: long enough to fail for reasons of their own.
GRACE_S = 20.0


@dataclass(frozen=True, slots=True)
class Job:
    """What the ranks of a job left. codes: exit codes, negative where a signal ended a rank.  late: ranks that had to be killed, with the others' patience at an end."""

    codes: tuple[int, ...]
    out: tuple[str, ...]
    err: tuple[str, ...]
    late: tuple[int, ...]
    seconds: float

    def __str__(self) -> str:
        ends = [f"rank {r}: exit code {code}{' (killed, it went on too long)' if r in self.late else ''}\n{self.err[r][-3000:]}" for r, code in enumerate(self.codes)]
        return "\n".join([f"after {self.seconds:.1f} s", *ends])

    @property
    def results(self) -> dict[str, list[dict]]:
        """What rank 0 printed of each case, among what FSDP2 may print: a result a rank."""
        assert self.codes == (0,) * len(self.codes), str(self)
        lines = [json.loads(text) for text in self.out[0].splitlines() if text.startswith('{"case"')]
        return {line["case"]: line["ranks"] for line in lines}


class Processes:
    """The ranks of a job while they run."""

    def __init__(self, command: Sequence[str], world: int, folder: Path, environment: Mapping[str, str]):
        self.folder = folder
        # A session of its own, so that compilers that a rank starts end with it.
        self.all: list[subprocess.Popen] = []
        for r in range(world):
            with open(folder / f"out.{r}", "wb") as out, open(folder / f"err.{r}", "wb") as err:
                self.all.append(subprocess.Popen([sys.executable, *command], env={**environment, "RANK": str(r), "WORLD_SIZE": str(world)}, start_new_session=True,
                                                 cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err))

    def kill(self) -> tuple[int, ...]:
        """End what still runs; gives their ranks."""
        late = tuple(r for r, p in enumerate(self.all) if p.poll() is None)
        for p in self.all:
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            p.wait()
        return late

    def wait(self, until: float) -> bool:
        """Until all have ended, or GRACE_S after the first that failed, or until that moment. Returns whether all have ended."""
        opened = {os.pidfd_open(p.pid): p for p in self.all if p.poll() is None}
        if any(p.poll() for p in self.all):
            until = min(until, time.monotonic() + GRACE_S)
        try:
            waiting = dict(opened)
            while waiting and (left := until - time.monotonic()) > 0:
                for fd in select.select(list(waiting), [], [], left)[0]:
                    if waiting.pop(fd).wait() != 0:
                        until = min(until, time.monotonic() + GRACE_S)
            return not waiting
        finally:
            for fd in opened:
                os.close(fd)


@pytest.fixture(scope="session")
def kept_plans(tmp_path_factory: pytest.TempPathFactory, rt_kept: Path) -> Path:
    """A cache folder in which the jobs of this run find one another's plans, and tidec_rt as this run has it."""
    folder = tmp_path_factory.mktemp("plans")
    folder.chmod(0o700)
    shutil.copytree(rt_kept, folder / "rt")
    return folder


def _runner(kept_plans: Path, folders: Callable[[], Path]) -> Callable[..., Job]:
    def run(script: str, *arguments: str, world: int = 4, timeout_s: float = 300.0, environment: Mapping[str, str] = {}, during: Callable[[Processes], None] = lambda _: None) -> Job:
        folder = folders()
        usual = {name: value for name, value in os.environ.items() if not name.startswith("TIDEC_")}
        usual.update(OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT), TIDEC_CACHE_DIR=str(kept_plans), PYTHONUNBUFFERED="1")
        start = time.monotonic()
        ranks = Processes([str(Path(__file__).parent / script), str(folder / "store"), *arguments], world, folder, {**usual, **environment})
        try:
            during(ranks)
            ranks.wait(start + timeout_s)
        finally:
            late = ranks.kill()
        out, err = ([(folder / f"{name}.{r}").read_text(errors="replace") for r in range(world)] for name in ("out", "err"))
        return Job(tuple(p.returncode for p in ranks.all), tuple(out), tuple(err), late, time.monotonic() - start)

    return run


@pytest.fixture
def job(tmp_path_factory: pytest.TempPathFactory, kept_plans: Path) -> Callable[..., Job]:
    """`job(script, *arguments, world=4)` runs `script STORE arguments` of this folder as that many ranks and gives what they left.

    timeout_s: then all are killed.  environment: beside the usual.  during: called with the `Processes` once they are started.
    """
    return _runner(kept_plans, lambda: tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def long_job(tmp_path_factory: pytest.TempPathFactory, kept_plans: Path) -> Callable[..., Job]:
    """The same for a job whose results several tests look at."""
    return _runner(kept_plans, lambda: tmp_path_factory.mktemp("job"))
