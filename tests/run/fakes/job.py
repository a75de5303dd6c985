"""A job of the nccl target in this one process, a thread a rank, on the GPU and the NCCL of this folder: what `tidec run` would do, and what came out."""
from __future__ import annotations

import ctypes
import json
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

from tidec.emit.bundle import read_bundle
from tidec.errors import TidecError
from tidec.interpret.bits import carry_out
from tidec.run import worker
from tidec.run.compare import first_difference
from tidec.run.host import HostJob, Objects, stops
from tidec.run.made import make

import live


def run(job: HostJob, short: int):
    """short: by how many calls rank 1 does less than the others."""
    said = [None] * job.plan.ranks
    with ExitStack() as stack:
        objects = Objects(job, stack)

        def rank(r: int) -> None:
            told = objects.told(range(r, r + 1))
            said[r] = worker.run(objects.library, {**told, "calls": told["calls"] - (short if r == 1 else 0)})

        threads = [threading.Thread(target=rank, args=(r,)) for r in range(job.plan.ranks)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        if any(code for code, _ in said):
            raise stops(job, [code for code, _ in said], [s["why"] for _, s in said])
        return objects.collect([s["digests"] for _, s in said], [s["nanoseconds"] for _, s in said])


def main() -> int:
    told = json.loads(sys.argv[1])
    num_copies = ctypes.CDLL(told["gpu"]).fake_num_copies
    num_copies.restype = ctypes.c_long
    lines = []
    for plan in read_bundle(Path(told["bundle"])).plans:
        for accumulate in (False, True) if "reduce" in plan.collective.value else (False,):
            given = make(plan, calls=told["calls"], accumulate=accumulate, is_poisoned=True)
            job = HostJob(Path(told["library"]), plan, given, alpha=1 / plan.ranks, accumulate=accumulate, is_poisoned=True, num_seeds=told["seeds"], deadline_s=told["deadline_s"],
                          entry="tidec_node_run")
            before = num_copies()
            if told["is_live"]:
                outputs = live.run(Path(told["library"]), Path(told["gpu"]), plan, given, alpha=1 / plan.ranks, accumulate=accumulate)
                difference = first_difference(plan, outputs, carry_out(plan, given, alpha=1 / plan.ranks, accumulate=accumulate))
                lines.append({"plan": plan.collective.value, "accumulate": accumulate, "difference": None if difference is None else str(difference)})
                continue
            try:
                ran = run(job, told["short"])
            except TidecError as problem:
                lines.append({"plan": plan.collective.value, "why": str(problem.diagnostics[0])})
                continue
            copies = num_copies() - before
            difference = first_difference(plan, ran.outputs, carry_out(plan, given, alpha=1 / plan.ranks, accumulate=accumulate, is_poisoned=True))
            lines.append({"plan": plan.collective.value, "accumulate": accumulate, "difference": None if difference is None else str(difference), "digests": len(set(ran.digests)), "copies": copies,
                          "most_steps": ctypes.CDLL(told["gpu"]).fake_most_steps(),
                          "most_puts": ctypes.CDLL("libnccl.so.2").fake_most_puts() if plan.nodes > 1 else 0})
    print(json.dumps(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
