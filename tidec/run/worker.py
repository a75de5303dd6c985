"""One process of a host job: it opens the bundle's library and runs its ranks. It needs ctypes and nothing else, and is run as a script.

What it is told comes as JSON on its command line; what it has to say goes as JSON to a file that it is told of, since a library may print, and its exit code is what the
library gave.
"""
from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

MESSAGE_BYTES = 8192
# TIDEC_HOST_STOPPED
STOPPED = 1
_PR_SET_PDEATHSIG = 1


class Sizes(ctypes.Structure):
    """tidec_host_sizes."""

    _fields_ = [(name, ctypes.c_int64) for name in (
        "object_bytes", "cells_at", "num_cells", "arena_at", "arena_bytes", "inputs_at", "input_bytes", "before_at", "outputs_at", "output_bytes")]


class Range(ctypes.Structure):
    """tidec_host_range."""

    _fields_ = [("offset", ctypes.c_int64), ("bytes", ctypes.c_int64)]


class HostJob(ctypes.Structure):
    """tidec_host_job."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("program", "calls", "first_seed", "num_seeds", "deadline_ms")), ("alpha", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("accumulate", "threads", "scalar", "poison", "unread", "sum_ctas", "land_ctas")), ("num_zero", ctypes.c_int64), ("zero", ctypes.POINTER(Range)),
    ]


class Program(ctypes.Structure):
    """The beginning of tidec_program."""

    _fields_ = [("name", ctypes.c_char_p), ("plan_digest", ctypes.c_char_p), ("nodes", ctypes.c_int64), ("lanes", ctypes.c_int64)]


def open_library(path: str) -> ctypes.CDLL:
    """A bundle's library with its functions typed."""
    library = ctypes.CDLL(path)
    library.tidec_num_programs.restype = ctypes.c_int64
    library.tidec_program_at.restype, library.tidec_program_at.argtypes = ctypes.POINTER(Program), [ctypes.c_int64]
    library.tidec_host_size.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(Sizes)]
    library.tidec_host_input_at.restype, library.tidec_host_input_at.argtypes = ctypes.c_int64, [ctypes.c_int64, ctypes.c_int64]
    return library


def entry(library: ctypes.CDLL, name: str) -> ctypes._CFuncPtr:
    """The function that runs ranks of a job, of that name, typed: all of them are called alike."""
    run = getattr(library, name)
    run.argtypes = [
        ctypes.POINTER(HostJob), ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_int64),
        ctypes.c_char_p, ctypes.c_int64,
    ]
    return run


def run(library: ctypes.CDLL, told: dict) -> tuple[int, dict]:
    """Run the ranks that this process has. Returns the library's code, and what there is to say."""
    zero = (Range * max(1, len(told["zero"])))(*(Range(*r) for r in told["zero"]))
    job = HostJob(*(told[name] for name, _ in HostJob._fields_[:-2]), len(told["zero"]), zero)
    objects, num = told["objects"], told["num_seeds"]
    digests, nanoseconds, message = (ctypes.c_uint64 * num)(), (ctypes.c_int64 * num)(), ctypes.create_string_buffer(MESSAGE_BYTES)
    code = entry(library, told["entry"])(
        ctypes.byref(job), told["first_rank"], told["num_ranks"], (ctypes.c_int32 * len(objects))(*objects), digests, nanoseconds, message, MESSAGE_BYTES)
    if code:
        return code, {"digests": [], "nanoseconds": [], "why": message.value.decode(errors="replace")}
    return code, {"digests": list(digests), "nanoseconds": list(nanoseconds), "why": ""}


def go_with_parent(parent: int) -> bool:
    """Have this process go with the one that started it, whatever ends that one; False where that has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def main() -> int:
    """The script."""
    told = json.loads(sys.argv[1])
    if not go_with_parent(told["parent"]):
        return 1
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code, said = run(open_library(told["library"]), told)
    with open(told["answer"], "w", encoding="ascii") as answer:
        json.dump(said, answer)
    return code


if __name__ == "__main__":
    sys.exit(main())
