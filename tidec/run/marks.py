"""Ranges that a profiler of torch shows: each collective of a held group, with its name and what it is run by. Where no profiler runs they cost a look at a flag.

On a GPU's timeline a range covers what was enqueued in it: copies and kernels, not the waits and counters of a stream.
"""
from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch.autograd import profiler

_NOTHING = nullcontext()


def marked(what: str, name: str) -> AbstractContextManager:
    """For a `with` block: `tidec::<what> (<name>)`, as FSDP2 spells its own. name: of the group."""
    return profiler.record_function(f"tidec::{what} ({name})") if profiler._is_profiler_enabled else _NOTHING
