"""The memory that a job on made data takes on this machine, and whether there is as much.

N ranks, C calls. Of each rank and call: I bytes that it is given, O bytes that it delivers.
"""
from __future__ import annotations

import re
from pathlib import Path

from tidec.errors import Diagnostic, TidecError, bytes_text
from tidec.inputs.ask import Collective
from tidec.plan.arena import stored_bytes
from tidec.plan.ir import Plan
from tidec.plan.layout import PACK_ITEM_BYTES

_HELP = "run a smaller topology (--topo), smaller groups (--group) or fewer calls (--calls)"


def job_bytes(plan: Plan, *, calls: int, is_shared: bool) -> int:
    """Bytes that are live at most while a plan runs. is_shared: in shared memory of its own, beside what it is given.

    Given data are N*C*(I + O), what the reference delivers N*C*O. Then the reference plays a second time, with N arenas, and delivers N*C*O; or the
    shared memory has N arenas, the given data and N*C*O again, of which a copy is read.
    """
    layout = plan.layout
    if plan.collective is Collective.ALL_GATHER:
        given, out = stored_bytes(layout, plan.stored if plan.has_cast else plan.gathered), layout.landing_bytes
    else:
        given = sum(p.real_elems for p in layout.params if p.is_trainable) * plan.gradient_dtype.item_bytes
        out = PACK_ITEM_BYTES * layout.packed_elems
    each = given + 3 * out + (given + 2 * out if is_shared else 0)
    return plan.ranks * (calls * each + plan.arena.bytes)


def check_room(plan: Plan, *, calls: int, is_shared: bool) -> None:
    """Let no job begin that this machine has no memory for: the kernel would kill it, or another process. Raises E008."""
    wanted, found = job_bytes(plan, calls=calls, is_shared=is_shared), available_bytes()
    if found is not None and wanted > found:
        raise no_room(plan, calls, f"it takes up to {bytes_text(wanted)}, and {bytes_text(found)} are available (MemAvailable of /proc/meminfo)")


def no_room(plan: Plan, calls: int, reason: str) -> TidecError:
    """What is told where a job has too little memory."""
    what = plan.collective.value.replace("_", "-")
    return TidecError(Diagnostic("E008", f"{calls} calls of the {what} of {plan.groups[0]} on {plan.ranks} ranks do not fit into this machine", reason=reason, help=_HELP))


def available_bytes() -> int | None:
    """Memory that this machine can give without swapping; `None` where it does not say."""
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None
