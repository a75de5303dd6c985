"""The nccl target under a live job, as `tidec bench` drives it (tidec/node.h), on the GPU and the NCCL of this folder: a thread a rank, call by call."""
from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import numpy as np

from tidec.interpret.bits import Given, Outputs
from tidec.plan.ir import Plan
from tidec.run.worker import MESSAGE_BYTES, open_library

_HANDLE_BYTES, _SUM_CTAS, _DEADLINE_MS = 256, 16, 20000
_LONG, _AT = ctypes.c_int64, ctypes.c_void_p


class Rank:
    """A node of the interface. Every call that fails raises RuntimeError."""

    def __init__(self, library: ctypes.CDLL, gpu: ctypes.CDLL, program: int, rank: int):
        self._library, self._message = library, ctypes.create_string_buffer(MESSAGE_BYTES)
        self._gpu, self._stream = gpu, _AT()
        gpu.cudaSetDevice(rank)
        gpu.cudaStreamCreateWithPriority(ctypes.byref(self._stream), 0, 0)
        library.tidec_node_open.restype = _AT
        self._node = _AT(library.tidec_node_open(_LONG(program), _LONG(rank), ctypes.c_int32(_SUM_CTAS), _LONG(_DEADLINE_MS), self._message, _LONG(MESSAGE_BYTES)))
        if not self._node:
            raise RuntimeError(self._message.value.decode())

    def _ask(self, what: str, *arguments: object) -> None:
        if getattr(self._library, f"tidec_node_{what}")(self._node, *arguments, self._message, _LONG(MESSAGE_BYTES)):
            raise RuntimeError(self._message.value.decode())

    def handle(self) -> bytes:
        made = ctypes.create_string_buffer(_HANDLE_BYTES)
        self._ask("handle", made)
        return made.raw

    def connect(self, handles: list[bytes]) -> None:
        self._ask("connect", ctypes.create_string_buffer(b"".join(handles)))

    def gather(self, call: int, shard: np.ndarray, size: int) -> np.ndarray:
        """The landing, before it is let go."""
        landing = _AT()
        self._ask("gather", _LONG(call), _AT(shard.ctypes.data), self._stream)
        self._ask("acquire", _LONG(call), self._stream, ctypes.byref(landing))
        self.over()
        found = np.frombuffer(ctypes.string_at(landing, size), np.uint8)
        self._ask("release", _LONG(call), self._stream)
        return found

    def reduce(self, call: int, gradients: tuple[np.ndarray, ...], out: np.ndarray, alpha: float, accumulate: bool) -> np.ndarray:
        at = (_AT * len(gradients))(*(g.ctypes.data if g.size else None for g in gradients))
        self._ask("reduce", _LONG(call), at, _LONG(len(gradients)), _AT(out.ctypes.data), ctypes.c_float(alpha), ctypes.c_int32(accumulate), self._stream)
        self.over()
        return out

    def over(self) -> None:
        """All that was begun has ended."""
        self._ask("wait", _LONG(_DEADLINE_MS))
        self._gpu.cudaStreamSynchronize(self._stream)

    def close(self) -> None:
        self._library.tidec_node_close(self._node)


def run(library: Path, gpu: Path, plan: Plan, given: Given, *, alpha: float, accumulate: bool) -> Outputs:
    """What every rank has after every call. Raises RuntimeError with what the first rank said that fails."""
    opened, device = open_library(str(library)), ctypes.CDLL(str(gpu))
    (program,) = [i for i in range(opened.tidec_num_programs()) if opened.tidec_program_at(i).contents.plan_digest.decode() == plan.digest]
    barrier, handles, outputs, failed = threading.Barrier(plan.ranks), [b""] * plan.ranks, [[None] * plan.ranks for _ in range(given.calls)], []

    def rank(r: int) -> None:
        try:
            one = Rank(opened, device, program, r)
            handles[r] = one.handle()
            barrier.wait()
            one.connect(handles)
            for e in range(given.calls):
                inputs, before = tuple(raw.copy() for raw in given.inputs[e][r]), given.before[e][r].copy()
                outputs[e][r] = one.reduce(e, inputs, before, alpha, accumulate) if "reduce" in plan.collective.value else one.gather(e, inputs[0], before.size)
            # What follows the last reading goes to the others' memory.
            one.over()
            barrier.wait()
            one.close()
        except RuntimeError as problem:
            failed.append(str(problem))
            barrier.abort()

    threads = [threading.Thread(target=rank, args=(r,)) for r in range(plan.ranks)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise RuntimeError(failed[0])
    return tuple(tuple(row) for row in outputs)
