"""Runs a program of examples/measure as if its two ranks had a GPU each, on this machine's cores: the lines that only GPUs come to run too.

    as_gpu.py PROGRAM ARGUMENTS        first starts two ranks of itself, as ranks.start would

Tensors are the CPU's, plans run by the host target, streams and events are made here: whatever is enqueued is over at once, and an event holds the time of day. A gate is closed
until it was asked for as often as there are events. Nothing of what is measured means anything.
"""
from __future__ import annotations

import runpy
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import torch


class Stream:
    def __init__(self, device=None, priority=0):
        self.priority, self.cuda_stream = priority, 0

    def wait_event(self, event):
        assert event.at is not None, "an event is waited for that nobody has recorded"


class Event:
    def __init__(self, enable_timing=False):
        self.is_timing, self.at = enable_timing, None

    def record(self, stream=None):
        self.at = time.perf_counter()

    def query(self):
        # Of events that measure: a gate that is still closed.
        return not self.is_timing

    def elapsed_time(self, end):
        return 1000 * (end.at - self.at)


CURRENT = [Stream()]


@contextmanager
def on(stream):
    CURRENT.append(stream)
    yield
    CURRENT.pop()


def pretend() -> None:
    """Put a GPU that is none in torch's place for one, and host targets and CPU tensors behind what would use it."""
    from dataclasses import fields

    import ranks
    import waves

    from tidec.run import beside
    from tidec.run.arena import tensor_at

    cuda = torch.cuda
    cuda.Stream, cuda.Event, cuda.stream = Stream, Event, on
    cuda.set_stream = lambda stream: CURRENT.__setitem__(-1, stream)
    cuda.current_stream = lambda device=None: CURRENT[-1]
    cuda._sleep = lambda cycles: None
    cuda.synchronize = cuda.empty_cache = lambda device=None: None
    cuda.memory_reserved = cuda.memory_allocated = lambda device=None: 4096
    cuda.mem_get_info = lambda device=None: (2**30, 2**31)
    cuda.get_device_name = lambda device=None: "no GPU"
    cuda.nccl.version = lambda: (2, 28, 9)
    cuda.get_device_properties = lambda device=None: type("Properties", (), {"multi_processor_count": 132})

    class OnGpu(beside.Here):
        @property
        def is_cuda(self):
            return True

    joined, built = ranks.join, ranks.library_of

    def join(rank, world, target, **rest):
        here = joined(rank, world, "host", **rest)
        return OnGpu(*(getattr(here, f.name) for f in fields(here)))

    ranks.join = join
    ranks.library_of = lambda path, target, cache: built(path, "host", cache)
    beside._memory = lambda address, num_bytes, here: tensor_at(address, num_bytes, torch.uint8)
    from tidec.run import bench_rank

    bench_rank._copy_gbps = lambda here: 1.0
    waves.GpuWaves = lambda built, device, num: waves.HostWaves(num)


def main() -> int:
    program, *given = sys.argv[1:]
    sys.path.insert(0, str(Path(program).parent))
    import ranks

    code = ranks.start(__file__, [program, *given], ranks=2, limit_s=200)
    if code is not None:
        return code
    pretend()
    sys.argv = [program, *given]
    runpy.run_path(program, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
