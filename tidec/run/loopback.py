"""A plan on the loopback target: all ranks as virtual ranks of one GPU, in this process.

The objects, and so what a job is given and gives, are those of the host target (`host.py`).
"""
from __future__ import annotations

import ctypes
from contextlib import ExitStack

from tidec.errors import Diagnostic, TidecError
from tidec.run.host import HostJob, HostRun, Objects, stops
from tidec.run.worker import MESSAGE_BYTES, HostJob as Told, Range


def run_loopback(job: HostJob) -> HostRun:
    """Run a job to its end on the current GPU; seeds only count the runs.

    Raises E006 where there is no GPU; R001 where the job stops; E002 where the library does not hold the plan; E008 where memory is missing.
    """
    with ExitStack() as stack:
        objects = Objects(job, stack)
        library, message = objects.library, ctypes.create_string_buffer(MESSAGE_BYTES)
        library.tidec_loopback_has_device.argtypes = [ctypes.c_char_p, ctypes.c_int64]
        library.tidec_loopback_run.argtypes = [
            ctypes.POINTER(Told), ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_int64),
            ctypes.c_char_p, ctypes.c_int64,
        ]
        if not library.tidec_loopback_has_device(message, MESSAGE_BYTES):
            raise TidecError(Diagnostic("E006", "target loopback needs a GPU", reason=message.value.decode(errors="replace"), help="run it on a machine with an NVIDIA GPU and its driver"))
        told = objects.told(range(job.plan.ranks))
        zero = (Range * max(1, len(told["zero"])))(*(Range(*r) for r in told["zero"]))
        asked = Told(*(told[name] for name, _ in Told._fields_[:-2]), len(told["zero"]), zero)
        digests, nanoseconds = (ctypes.c_uint64 * job.num_seeds)(), (ctypes.c_int64 * job.num_seeds)()
        files = (ctypes.c_int32 * len(objects.files))(*objects.files)
        code = library.tidec_loopback_run(ctypes.byref(asked), files, digests, nanoseconds, message, MESSAGE_BYTES)
        if code:
            raise stops(job, [code], [message.value.decode(errors="replace")])
        return objects.collect([list(digests)], [list(nanoseconds)])
