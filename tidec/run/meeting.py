"""Where the ranks of a process group meet before they first exchange anything: at the store of the job, which waits for nobody and has an ear for Ctrl-C.

A collective of a process group waits as long as that group's own timeout, and takes whatever another rank sends, even of a training step. Here a rank
that does not come is named at the deadline, by every rank that came.

A meeting of the ranks R of a group, the g-th of them, has four keys under "tidec/met/<R>/<g>": "here/<r>" that rank r came, "count" how many have, "ticket"
who decides, "end" what was decided: "", or who was missing. Whoever takes the first ticket decides; so all ranks leave a meeting with the same.
"""
from __future__ import annotations

import hashlib
import time

import torch.distributed as dist

from tidec.errors import Diagnostic, TidecError

# How long a rank that waits sleeps between two looks, at first and at most.
_FIRST_NAP_S, _NAP_S = 0.0005, 0.1


def meet(group: dist.ProcessGroup, place: str, deadline_s: float) -> None:
    """Wait until all ranks of a process group have come there. place: a function of tidec, as users call it.

    Where the group is a fake one, or the job has no store that ranks share, nobody is waited for.
    Raises F016 where one has not come by the deadline, or one that had come left; those that come later wait for a meeting of their own.
    """
    store = _store_of(group)
    if store is None:
        return
    ranks, me = dist.get_process_group_ranks(group), dist.get_rank()
    base = f"tidec/met/{hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]}"
    # The first meeting that may not be over; what the store counts is the same for a process group that was made anew.
    number = store.add(f"{base}/next", 0)
    while store.check([f"{base}/{number}/end"]):
        number += 1
    before = store.get(f"{base}/{number - 1}/end").decode() if number else ""
    at, end = f"{base}/{number}", f"{base}/{number}/end"
    has_ended, verdict = False, f"rank {me} left {place} before all had come"
    try:
        store.set(f"{at}/here/{me}", "1")
        if store.add(f"{at}/count", 1) == len(ranks):
            verdict = ""
        elif _is_there(store, end, deadline_s):
            has_ended = True
        else:
            missing = [r for r in ranks if not store.check([f"{at}/here/{r}"])]
            who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing))}"
            verdict = f"{who} did not call {place} within {deadline_s:g} s" if missing else ""
    finally:
        # NOTE: one that is interrupted leaves too, or the others would go on to an exchange without it.
        if not has_ended and store.add(f"{at}/ticket", 1) == 1:
            store.set(end, verdict)
            store.add(f"{base}/next", 1)
    # Between a ticket and its word lie two requests.
    if not _is_there(store, end, deadline_s):
        raise TidecError(Diagnostic("F016", f"a rank left {place} before all had come", help="look at the rank that is gone"))
    # Nobody asks any more who came.
    store.delete_key(f"{at}/here/{me}")
    said = store.get(end).decode()
    if said:
        reason = f"the ranks that came before have left: {before}" if before else ""
        raise TidecError(Diagnostic("F016", said, reason=reason, help=f"call {place} on every rank, at the same point"))


def _store_of(group: dist.ProcessGroup) -> dist.Store | None:
    """The store that the ranks of a job share; `None` = there is none, or it is one that keeps nothing."""
    try:
        store = dist.distributed_c10d._get_default_store()
        is_fake = dist.get_backend(group) == "fake"
        # A store that keeps nothing cannot be asked either.
        store.check(["tidec/met"])
        return None if is_fake else store
    except dist.DistNetworkError:
        raise
    except (AttributeError, RuntimeError, ValueError):
        return None


def _is_there(store: dist.Store, key: str, deadline_s: float) -> bool:
    """Wait for a key. NOTE: not by Store.wait, which hears no Ctrl-C, and writes a warning of each wait that is in vain."""
    nap, until = _FIRST_NAP_S, time.monotonic() + deadline_s
    while not store.check([key]):
        if time.monotonic() > until:
            return False
        time.sleep(nap)
        nap = min(2 * nap, _NAP_S)
    return True
