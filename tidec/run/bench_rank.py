"""One rank of `tidec bench`: it opens the library, measures every line of the job beside stock, and tells on its pipe.

Run as `python -m tidec.run.bench_rank TOLD`, TOLD being the JSON that `bench.py` writes. Its pipe takes objects, a line each: `at` (what it does next), `stops`
(a diagnostic), and of rank 0 `machine` and `row`.
"""
from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from tidec.build.nccl import MIN_NCCL, loaded_nccl
from tidec.errors import Diagnostic, TidecError
from tidec.inputs.document import quoted
from tidec.plan.ir import Plan
from tidec.plan.stored import plan_from_json
from tidec.run.beside import Here, beside
from tidec.run.collective import Node
from tidec.run.library import load_rt
from tidec.run.timing import Gate, Took, Wall, rounds
from tidec.run.worker import go_with_parent

_COPIES = 5


class Pipe:
    """Where this rank says what it does."""

    def __init__(self, file: int):
        self._file = os.fdopen(file, "w", encoding="ascii", buffering=1)

    def tell(self, **said: object) -> None:
        self._file.write(json.dumps(said) + "\n")

    def at(self, what: str) -> None:
        self.tell(at=what)


def measure(told: dict, pipe: Pipe) -> None:
    """All lines of the job. Raises E002, E006, R001."""
    pipe.at("waits for the other ranks")
    here = join(told["rank"], told["ranks"], told["target"], deadline_s=told["deadline_s"], seed=told["seed"],
                store=dist.FileStore(f"/proc/self/fd/{told['store']}", told["ranks"]))
    with open(f"/proc/self/fd/{told['plans']}", encoding="ascii") as file:
        plans = {plan.digest: plan for plan in map(plan_from_json, json.load(file))}
    if here.is_cuda:
        check_rails(tuple(plans.values()), loaded_nccl())
    opened = open_library(told["library"], Path(told["rt"]))
    pipe.at("measures the machine")
    machine = machine_of(here)
    if here.rank == 0:
        pipe.tell(machine=machine)
    for number, line in enumerate(told["measures"]):
        plan = plans[line["plan"]]
        what = f"the {plan.collective.value.replace('_', '-')} of {quoted(line['group'])}"
        pipe.at(f"opens {what}")
        node = connected(opened, plan, max(1, line["ctas"]), here)
        both = beside(plan, node, here)
        timer = Gate(here.control, here.device, deadline_s=told["deadline_s"], why=partial(node.wait, 1)) if here.is_cuda else Wall(here.control)
        pipe.at(f"compares the bits of {what}")
        difference = both.check()
        took = rounds(timer, {"stock": both.stock, "plan": both.plan}, calls=told["calls"], num=told["rounds"], control=here.control,
                      tell=lambda i: pipe.at(f"measures {what}, round {i} of {told['rounds']}"))
        pipe.at(f"compares the bits of {what} again")
        difference = difference or both.check()
        node.close()
        if here.rank == 0:
            pipe.tell(row={
                "number": number, "collective": plan.collective.value, "dtype": both.dtype.value, "size_bytes": both.size_bytes, "checked": both.checked,
                "difference": None if difference is None else asdict(difference), "sides": {name: _side(took[name], here) for name in took}})
        # A node that another rank opens may take the memory of this one's.
        del both, timer, node
        dist.barrier(here.control)
    pipe.at("ends")
    dist.barrier(here.control)
    dist.destroy_process_group()


def check_rails(plans: tuple[Plan, ...], version: tuple[int, int, int]) -> None:
    """Raises E006 where a plan of several nodes needs another NCCL than this process has loaded."""
    if version[:2] >= MIN_NCCL or all(plan.nodes == 1 for plan in plans):
        return
    want = ".".join(map(str, MIN_NCCL))
    raise TidecError(Diagnostic("E006", f"plans of several nodes need NCCL {want} or later",
                                reason=f"torch has loaded {'.'.join(map(str, version))}" if any(version) else "this process has loaded no libnccl.so.2",
                                help="pip install 'tidec[cu13]', and start it again with LD_PRELOAD set to that wheel's nvidia/nccl/lib/libnccl.so.2"))


def _side(took: tuple[Took, ...], here: Here) -> dict[str, list[float]]:
    return {"seconds": [t.seconds for t in took], "host_seconds": [t.host_seconds for t in took] if here.is_cuda else []}


def join(rank: int, ranks: int, target: str, *, deadline_s: float, seed: int, **meeting: object) -> Here:
    """The process groups: stock's, and one of the host's for everything else. meeting: where ranks meet, as init_process_group has it. Raises E006."""
    is_cuda = target == "nccl"
    device = torch.device("cuda", rank) if is_cuda else torch.device("cpu")
    if is_cuda:
        if torch.cuda.device_count() < ranks:
            raise TidecError(Diagnostic("E006", f"torch sees {torch.cuda.device_count()} GPUs, and {ranks} ranks need one each",
                                        help="run it on a machine with them, with a torch that is built for CUDA; CUDA_VISIBLE_DEVICES may hide some"))
        torch.cuda.set_device(device)
        # As under FSDP2, whose collectives have streams of their own. The default one is ordered with all others.
        torch.cuda.set_stream(torch.cuda.Stream(device))
    patience = timedelta(seconds=deadline_s)
    dist.init_process_group("nccl" if is_cuda else "gloo", rank=rank, world_size=ranks, timeout=patience, **meeting, **({"device_id": device} if is_cuda else {}))
    control = dist.new_group(backend="gloo", timeout=patience)
    return Here(rank, device, control, torch.cuda.current_stream().cuda_stream if is_cuda else 0, max(1, round(1000 * deadline_s)), seed)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The module tidec_rt, a tidec_rt.Library, and of each of its plans, by digest, the number in there."""

    rt: object
    library: object
    programs: dict[str, int]


def open_library(path: str, rt_folder: Path) -> Loaded:
    """A library, with the number of each of its plans. rt_folder: of tidec_rt. Raises E002."""
    rt = load_rt(rt_folder)
    try:
        library = rt.Library(path)
    except RuntimeError as problem:
        raise TidecError(Diagnostic("E002", f"{Path(path).name} cannot be loaded", reason=str(problem), help="build it on this machine: tidec compile --force --target ...")) from problem
    return Loaded(rt, library, {library.program(i).plan_digest: i for i in range(library.num_programs)})


def connected(opened: Loaded, plan: Plan, ctas: int, here: Here) -> Node:
    """A node of this rank, connected to the others', who all come here. ctas: of its sums. Raises E002 where the library does not hold the plan."""
    if plan.digest not in opened.programs:
        raise TidecError(Diagnostic("E002", f"the library does not hold plan {plan.digest[:12]}", reason="it was built from another bundle", help="compile the bundle again with --target"))
    node = opened.rt.Node(opened.library, opened.programs[plan.digest], here.rank, ctas, here.deadline_ms)
    handles: list = [None] * plan.ranks
    dist.all_gather_object(handles, node.handle(), group=here.control)
    node.connect(handles)
    # A handle may go once all are connected.
    dist.barrier(here.control)
    return node


def machine_of(here: Here) -> dict[str, object]:
    """What is measured on. Rank 0 measures the copy while the others wait."""
    gpus = [torch.cuda.get_device_name(i) for i in range(here.control.size())] if here.is_cuda else []
    # NOTE: torch tells the version that it was built with, and what is preloaded is another one.
    nccl = ".".join(map(str, next(v for v in (loaded_nccl(), torch.cuda.nccl.version()) if any(v)))) if here.is_cuda else ""
    rate = _copy_gbps(here) if here.rank == 0 else 0.0
    dist.barrier(here.control)
    return {"gpus": gpus, "cores": len(os.sched_getaffinity(0)), "torch": torch.__version__, "cuda": torch.version.cuda or "", "nccl": nccl, "copy_gbps": rate}


def _copy_gbps(here: Here) -> float:
    """Of one copy: 256 MiB by a copy engine to the next GPU, or 64 MiB by one core of the host; a median."""
    num_bytes, peer = (256 << 20, torch.device("cuda", here.rank + 1)) if here.is_cuda else (64 << 20, here.device)
    source, target = (torch.ones(num_bytes, dtype=torch.uint8, device=d) for d in (here.device, peer))

    def copy() -> None:
        target.copy_(source, non_blocking=True)

    copy()
    rate = num_bytes / statistics.median(_seconds_of(copy, here) for _ in range(_COPIES)) / 1e9
    del source, target, copy
    torch.cuda.empty_cache()
    return rate


def _seconds_of(call: Callable[[], object], here: Here) -> float:
    if not here.is_cuda:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def main() -> int:
    """The process. Ends at once where it has to stop: nothing of it is of use to anybody, and others may wait for it."""
    told = json.loads(sys.argv[1])
    if not go_with_parent(told["parent"]):
        return 1
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    pipe = Pipe(told["line"])
    try:
        measure(told, pipe)
    except TidecError as problem:
        d = problem.diagnostics[0]
        pipe.tell(stops={"code": d.code, "sentence": d.sentence, "reason": d.reason, "help": d.help})
        os._exit(1)
    except RuntimeError as problem:
        # Of a node, of torch, or of a rank that is gone.
        head, _, rest = str(problem).strip().partition("\n")
        pipe.tell(stops={"code": "R001", "sentence": head, "reason": "; ".join(line.strip() for line in rest.splitlines()[:4])})
        os._exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
