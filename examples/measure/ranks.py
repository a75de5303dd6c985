"""The processes of a measurement on one machine: started by the program itself, a rank each, or by torchrun; and what each of them opens of a bundle.

A program that measures plans calls `measured_by`. Another one calls `start`, which gives the exit code in the process that a person has started, and `None` in a rank,
which goes on: it calls `joined` for its process groups, and `opened` for the plans of a bundle. The first rank that fails ends the others, and nobody is waited for beyond the deadline.
"""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from tidec.build.rt import build_rt  # noqa: E402
from tidec.cache.folder import private_folder  # noqa: E402
from tidec.commands.bundles import library_of  # noqa: E402
from tidec.emit.bundle import Bundle, read_bundle  # noqa: E402
from tidec.inputs.ask import Collective  # noqa: E402
from tidec.plan.ir import Plan  # noqa: E402
from tidec.run.bench_rank import Loaded, join, open_library  # noqa: E402
from tidec.run.beside import Here  # noqa: E402
from tidec.run.library import kept_cache  # noqa: E402
from tidec.run.worker import go_with_parent  # noqa: E402

_POLL_S, _GRACE_S = 0.05, 5.0
# Of collectives under FSDP2: its streams for them are more urgent than that of the computation.
URGENT = -1


def arguments(about: str, *, out: str) -> argparse.ArgumentParser:
    """What every program of this kind takes. about: its docstring.  out: the file that it writes where no other is given."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="nccl", choices=("nccl", "host"), help="nccl: a GPU a rank; host: processes of this machine, to see that the program runs (default: nccl)")
    parser.add_argument("--ranks", type=int, default=2, help="processes, where torchrun has not started them (default: 2)")
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds of every wait (default: 60)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of all of it, after which the ranks are ended (default: 300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--out", default=out, help=f"the file that is written, again after every part (default: {out})")
    return parser


def of_bundle(about: str, *, out: str) -> argparse.ArgumentParser:
    """What every program takes that measures the plans of a bundle."""
    parser = arguments(about, out=out)
    parser.add_argument("bundle", help="a bundle's folder")
    parser.add_argument("--ctas", default="16,8", help="of the sums, beside those of the bundle (default: 16,8)")
    return parser


def measured_by(program: str, given: Sequence[str], parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace, Here, Opened], None]) -> int:
    """The exit code of a program that measures the plans of a bundle, or of one of its ranks. measure: what a rank does between the first meeting and the last."""
    options = parser.parse_args(given)
    code = start(program, given, ranks=options.ranks, limit_s=options.limit)
    if code is not None:
        return code
    here = joined(options.target, deadline_s=options.deadline, seed=options.seed)
    measure(options, here, opened(Path(options.bundle), options.target, here))
    dist.barrier(here.control)
    dist.destroy_process_group()
    return 0


def start(program: str, given: Sequence[str], *, ranks: int, limit_s: float, environment: Mapping[str, str] = {}) -> int | None:
    """The exit code of a job of this program, or `None` where this process is one of its ranks. given: what the program was given.  environment: beside the usual."""
    if "RANK" in os.environ:
        parent = os.environ.get("RANKS_PARENT")
        if parent is not None and not go_with_parent(int(parent)):
            return 1
        return None
    with tempfile.TemporaryDirectory() as folder:
        usual = {"OMP_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "32", **os.environ, **environment, "WORLD_SIZE": str(ranks), "RANKS_STORE": str(Path(folder) / "store"), "RANKS_PARENT": str(os.getpid())}
        processes = [subprocess.Popen([sys.executable, program, *given], env={**usual, "RANK": str(r), "LOCAL_RANK": str(r)}, stdin=subprocess.DEVNULL)
                     for r in range(ranks)]
        try:
            return _ended(processes, limit_s)
        finally:
            for p in processes:
                p.kill()
                p.wait()


def _ended(processes: Sequence[subprocess.Popen], limit_s: float) -> int:
    """The first exit code that is not 0. The others may say for a moment why they fail too."""
    until, first = time.monotonic() + limit_s, 0
    while any(p.poll() is None for p in processes):
        failed = next((r for r, p in enumerate(processes) if p.poll()), None)
        if failed is not None and not first:
            first = processes[failed].returncode
            print(f"rank {failed} ended with {first}", file=sys.stderr, flush=True)
            until = min(until, time.monotonic() + _GRACE_S)
        if time.monotonic() > until:
            if not first:
                print(f"not over after {limit_s:g} s: the ranks are ended", file=sys.stderr, flush=True)
            return abs(first) or 1
        time.sleep(_POLL_S)
    return abs(first or next((p.returncode for p in processes if p.returncode), 0))


def joined(target: str, *, deadline_s: float, seed: int) -> Here:
    """This rank, in its process groups. On a GPU the current stream is as urgent as FSDP2's for collectives. Raises E006."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = os.environ.get("RANKS_STORE")
    meeting = {"init_method": "env://"} if store is None else {"store": dist.FileStore(store, ranks)}
    here = join(rank, ranks, target, deadline_s=deadline_s, seed=seed, **meeting)
    if not here.is_cuda:
        torch.set_num_threads(1)
        return here
    stream = torch.cuda.Stream(here.device, priority=URGENT)
    torch.cuda.set_stream(stream)
    return replace(here, stream=stream.cuda_stream)


@dataclass(frozen=True, slots=True)
class Opened:
    """A bundle and its library, loaded."""

    bundle: Bundle
    loaded: Loaded

    def plan_of(self, group: str, collective: Collective) -> tuple[Plan, int]:
        """A group's plan, and the CTAs of its sums as the bundle has them. Raises ValueError where the group, or its plan, is not there."""
        names = {g.name: g for g in self.bundle.groups}
        if group not in names:
            raise ValueError(f"there is no group {group}: {', '.join(names)}")
        stem = names[group].all_gather if collective is Collective.ALL_GATHER else names[group].reduce_scatter
        if stem not in self.bundle.stems:
            raise ValueError(f"the {collective.value} of {group} stays stock")
        i = self.bundle.stems.index(stem)
        return self.bundle.plans[i], self.bundle.ctas[i].sum


def opened(path: Path, target: str, here: Here) -> Opened:
    """A bundle for this rank. What is not built yet, rank 0 builds while the others wait."""
    cache = kept_cache()[0]
    rt = private_folder(cache.folder) / "rt"
    for turn in (True, False):
        if turn is (here.rank == 0):
            bundle, library = read_bundle(path), library_of(path, target, cache)
            build_rt(rt)
        dist.barrier(here.control)
    return Opened(bundle, open_library(os.fspath(library), rt))


def gathered(mine: object, here: Here) -> list:
    """What every rank has, by rank."""
    every: list = [None] * here.control.size()
    dist.all_gather_object(every, mine, group=here.control)
    return every
