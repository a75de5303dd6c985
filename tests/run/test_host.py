"""The host target: interleavings, deadlines, and what is left of a job that does not end well."""
from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tidec.build.library import build_library
from tidec.build.toolchain import find_compiler, run_tool
from tidec.emit.render import render
from tidec.errors import Exit, TidecError
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.interpret.bits import carry_out
from tidec.plan.ir import Plan
from tidec.plan.lower import lower
from tidec.run import host, worker
from tidec.run.compare import first_difference
from tidec.run.host import HostJob, run_host, started
from tidec.run.made import make
from tidec.shipped import folder
from tidec.verify.certificate import Proved

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
# Enough seeds that a job is under way for minutes, unless something ends it.
ENDLESS = 5_000_000


def plan_of(topo: str, collective: Collective, *knobs: str) -> Plan:
    topology = parse_topology(topo)
    group = Group("g", 1, tuple(Parameter(f"p{i}", s, Dtype.BF16) for i, s in enumerate(((7, 3), (33,), (50, 6)))))
    return lower(Ask(topology, group, Lowering.P2P, parse_knobs(knobs, topology.lanes, nodes=topology.nodes)), collective)


PLANS = [plan_of("5x2", REDUCE), plan_of("5x2", REDUCE, "k=1", "n_out=1", "n_part=2", "stripes=2", "chunks=2"), plan_of("5x2", GATHER), plan_of("2x2", REDUCE)]


def job_of(plan: Plan, hosted, **rest) -> HostJob:
    calls = rest.pop("calls", 3)
    return HostJob(hosted(PLANS), plan, make(plan, calls=calls, is_poisoned=True), is_poisoned=True, **rest)


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


def gone(pids: list[int]) -> bool:
    """Whether none of these processes is left, within ten seconds."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if not any(Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:3] for pid in pids):
            return True
        time.sleep(0.01)
    return False


def test_every_plan_gives_one_digest_in_a_hundred_interleavings(hosted):
    for plan in PLANS:
        job = job_of(plan, hosted, is_in_process=True, num_seeds=100)
        ran = run_host(job)
        assert len(set(ran.digests)) == 1 and first_difference(plan, ran.outputs, carry_out(plan, job.given, is_poisoned=True)) is None


def test_a_seed_is_the_same_alone_and_in_a_row(hosted):
    job = job_of(PLANS[0], hosted, is_in_process=True, num_seeds=4, first_seed=5)
    assert run_host(replace(job, first_seed=7, num_seeds=1)).digests[0] == run_host(job).digests[2]


@pytest.mark.slow
@pytest.mark.parametrize("how", [dict(), dict(is_in_process=True)], ids=["processes", "one process"])
def test_a_thousand_interleavings_of_ten_ranks_give_one_digest(how, hosted):
    for plan in PLANS[:2]:
        job = job_of(plan, hosted, first_seed=1, num_seeds=1000, **how)
        ran = run_host(job)
        assert len(ran.digests) == 1000 and len(set(ran.digests)) == 1
        assert first_difference(plan, ran.outputs, carry_out(plan, job.given, is_poisoned=True)) is None


def test_workers_load_nothing_but_ctypes():
    shown = subprocess.run((sys.executable, "-I", "-S", "-c", f"import runpy, sys; runpy.run_path({worker.__file__!r}); print(*sys.modules)"), capture_output=True,
                           text=True, check=True).stdout.split()
    assert "ctypes" in shown and not {"torch", "pybind11", "numpy", "tidec"} & {m.split(".")[0] for m in shown}


def test_a_library_that_prints_changes_nothing(hosted, tmp_path, monkeypatch):
    """As NCCL_DEBUG has NCCL do. It is more than a pipe holds."""
    source, library = tmp_path / "loud.c", tmp_path / "loud.so"
    source.write_text('#include <stdio.h>\n__attribute__((constructor)) static void loud(void) { for (int i = 0; i < 9999; ++i) puts("a version, say"); }\n')
    run_tool((*find_compiler().command, "-x", "c", "-shared", "-fPIC", str(source), "-o", str(library)), deadline_s=60)
    job = job_of(PLANS[3], hosted, deadline_s=20)
    quiet = run_host(job)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    loud = run_host(job)
    assert loud.digests == quiet.digests and len(loud.seconds) == 1


# ---- what stops


def test_a_process_that_says_nothing_is_told_with_what_it_printed(hosted, tmp_path, monkeypatch):
    """Its exit code is 0 all the same."""
    silent = tmp_path / "silent.py"
    silent.write_text("print('nothing to say')\n")
    monkeypatch.setattr(worker, "__file__", str(silent))
    with pytest.raises(TidecError, match="stops: nothing to say"):
        run_host(job_of(PLANS[3], hosted))


def without(old: str, new: str = "") -> str:
    """The library's header with one line less; the plan is not changed."""
    (header, *_) = render([Proved(PLANS[3], "{}")])
    found = [line for line in header.text.splitlines() if old in line]
    assert len(found) == 1, (old, found)
    return header.text.replace(found[0], new)


def broken(beside: Path, text: str) -> Path:
    for source in render([Proved(PLANS[3], "{}")]):
        (beside / source.name).write_text(text if source.name == "g.rs.hpp" else source.text)
    (beside / "manifest.sha256").write_text("of no bundle\n")
    return build_library(beside, "host", flags=("-O0",)).path


@pytest.mark.parametrize("how", [dict(), dict(is_in_process=True), dict(is_in_process=True, is_threaded=True)], ids=["processes", "one process", "threads"])
def test_a_signal_that_nobody_gives_stops_the_job_and_is_named(how, hosted, tmp_path_factory):
    library = _silent(tmp_path_factory)
    before, start = shared_memory(), time.monotonic()
    with pytest.raises(TidecError) as caught:
        run_host(HostJob(library, PLANS[3], make(PLANS[3], calls=2), deadline_s=0.5, **how))
    assert time.monotonic() - start < 8 and caught.value.exit is Exit.REFUTED
    (d,) = caught.value.diagnostics
    found = re.search(r'the reduce-scatter of "g" stops: rank (\d\.\d), stream (\w+), call 0: (\w+) by rank (\d\.\d) is 0, and 1 is awaited', d.sentence)
    assert found and found[3] == "owned", d.sentence
    assert f"missing: rank {found[4]} has not raised owned to 1" in d.reason
    assert d.spots[0].file == "schedules/tide_rs.py" and "s.wait(owned[p])" in Path(folder("schedules") / "tide_rs.py").read_text().splitlines()[d.spots[0].line - 1]
    assert shared_memory() == before


# The fourth thread cannot be had, as where a limit of the machine is reached.
FEW_THREADS = r"""
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
int pthread_create(pthread_t* thread, const pthread_attr_t* attr, void* (*start)(void*), void* arg) {
  static int made = 0;
  int (*real)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) = dlsym(RTLD_NEXT, "pthread_create");
  return __atomic_add_fetch(&made, 1, __ATOMIC_SEQ_CST) > 3 ? EAGAIN : real(thread, attr, start, arg);
}
"""


def test_a_thread_that_cannot_be_had_stops_the_job_and_the_others_are_joined(hosted, tmp_path, monkeypatch):
    (tmp_path / "few.c").write_text(FEW_THREADS)
    subprocess.run(("gcc", "-shared", "-fPIC", "-D_GNU_SOURCE", "-o", str(tmp_path / "few.so"), str(tmp_path / "few.c"), "-ldl"), check=True)
    monkeypatch.setenv("LD_PRELOAD", str(tmp_path / "few.so"))
    with pytest.raises(TidecError, match="cannot have a thread a stream") as caught:
        run_host(job_of(PLANS[3], hosted, is_one_process=True, is_threaded=True, num_seeds=2))
    assert "signal" not in str(caught.value)


_LIBRARIES: dict[str, Path] = {}


def _silent(tmp_path_factory) -> Path:
    if "silent" not in _LIBRARIES:
        _LIBRARIES["silent"] = broken(tmp_path_factory.mktemp("silent"), without("ops.signal(kSum, kOwned()"))
    return _LIBRARIES["silent"]


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_rank_that_is_stopped_or_killed_is_named_and_nothing_is_left(how, hosted):
    before = shared_memory()
    with started(job_of(PLANS[3], hosted, num_seeds=ENDLESS, deadline_s=1.0)) as running:
        pids = [p.pid for p in running.processes]
        until_it_runs(running)
        os.kill(pids[2], how)
        start = time.monotonic()
        with pytest.raises(TidecError) as caught:
            running.finish()
        assert time.monotonic() - start < 10
        assert all(p.poll() not in (None, 0) for p in running.processes)
    (d,) = caught.value.diagnostics
    assert "silent: rank 1.0 for" in d.reason and ("rank 1.0 was killed by signal 9" in d.reason or "rank 1.0 did not end, and was killed" in d.reason), str(d)
    assert (d.spots and d.spots[0].file == "schedules/tide_rs.py") or "between two runs" in d.sentence, str(d)
    assert gone(pids) and shared_memory() == before


def until_it_runs(running) -> None:
    """All ranks have come."""
    until = time.monotonic() + 20
    while running.silence() == 0.0:
        assert time.monotonic() < until
        time.sleep(0.01)


SCRIPT = """
import signal
import sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)     # what starts the tests may have it ignored
from tidec.plan.stored import plan_from_json
from tidec.run.host import HostJob, started
from tidec.run.made import make
plan = plan_from_json(Path(sys.argv[2]).read_text())
with started(HostJob(Path(sys.argv[1]), plan, make(plan, calls=3), num_seeds=%d)) as running:
    print(*(p.pid for p in running.processes), flush=True)
    running.finish()
""" % ENDLESS


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_no_process_outlives_the_one_that_started_it(how, hosted, tmp_path):
    before = shared_memory()
    (tmp_path / "plan.json").write_text(PLANS[3].to_json())
    parent = subprocess.Popen((sys.executable, "-c", SCRIPT, str(hosted(PLANS)), str(tmp_path / "plan.json")), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              env={**os.environ, "PYTHONPATH": str(folder("runtime").parent)})
    try:
        pids = list(map(int, parent.stdout.readline().split()))
        assert len(pids) == 4 and not any(Path(f"/proc/{pid}").exists() is False for pid in pids)
        parent.send_signal(how)
        assert parent.wait(20) != 0 and gone(pids) and shared_memory() == before
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def test_processes_have_the_environment_that_a_job_says(hosted):
    with started(job_of(PLANS[3], hosted, num_seeds=ENDLESS, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "32", "NCCL_GIN_IB_TC": "236"})) as running:
        until_it_runs(running)
        found = [Path(f"/proc/{p.pid}/environ").read_bytes() for p in running.processes]
    assert [set(one.split(b"\0")[:-1]) for one in found] == [{b"CUDA_DEVICE_MAX_CONNECTIONS=32", b"NCCL_GIN_IB_TC=236"}] * 4


def test_a_library_of_another_plan_is_refused(hosted):
    other = plan_of("2x2", REDUCE, "n_stg=1")
    with pytest.raises(TidecError, match="E002.*does not hold plan"):
        run_host(HostJob(hosted(PLANS), other, make(other, calls=1)))


# Once it is told to starve, nothing is left to give out.
STARVING = r"""
#include <cstdlib>
#include <new>
static bool starves = false;
extern "C" void starve() { starves = true; }
void* operator new(std::size_t bytes) {
  if (starves) throw std::bad_alloc();
  return std::malloc(bytes);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
"""
ASK_STARVING = """if True:
    import ctypes, sys
    sys.path.insert(0, sys.argv[1])
    import worker
    library, sizes = worker.open_library(sys.argv[2]), worker.Sizes()
    assert library.tidec_host_size(0, 1, sizes) == 0 and library.tidec_host_size(99, 1, sizes) == 2
    ctypes.CDLL(None).starve()
    told = dict.fromkeys((name for name, _ in worker.HostJob._fields_), 0) | {"program": 0, "calls": 1, "num_seeds": 1, "zero": [], "entry": "tidec_host_run", "objects": [], "first_rank": 0, "num_ranks": 1}
    print(library.tidec_host_size(0, 1, sizes), worker.run(library, told))
"""


def test_memory_that_is_missing_to_lay_objects_out_is_told_as_that(hosted, tmp_path):
    (tmp_path / "starving.cpp").write_text(STARVING)
    run_tool((*find_compiler().command, "-shared", "-fPIC", str(tmp_path / "starving.cpp"), "-o", str(tmp_path / "starving.so")), deadline_s=60)
    done = subprocess.run((sys.executable, "-c", ASK_STARVING, str(Path(worker.__file__).parent), str(hosted(PLANS))), capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "LD_PRELOAD": str(tmp_path / "starving.so")})
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{worker.STOPPED} ({worker.STOPPED}, {{'digests': [], 'nanoseconds': [], 'why': 'there is no more memory'}})\n"


MAP_STARVING = """if True:
    import os, resource, sys
    sys.path.insert(0, sys.argv[1])
    import worker
    library, sizes, calls = worker.open_library(sys.argv[2]), worker.Sizes(), 1 << 20
    assert library.tidec_host_size(0, calls, sizes) == 0 and sizes.object_bytes > 1 << 30, sizes.object_bytes
    objects = [os.memfd_create(str(r)) for r in range(10)]
    for o in objects: os.ftruncate(o, sizes.object_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    told = dict.fromkeys((name for name, _ in worker.HostJob._fields_), 0) | {"program": 0, "calls": calls, "num_seeds": 1, "deadline_ms": 1000, "zero": [], "entry": "tidec_host_run", "objects": objects, "first_rank": 0, "num_ranks": 10}
    print(worker.run(library, told))
"""


def test_objects_that_memory_is_too_small_to_map_are_told_as_that(hosted):
    done = subprocess.run((sys.executable, "-c", MAP_STARVING, str(Path(worker.__file__).parent), str(hosted(PLANS))), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"({worker.STOPPED}, {{'digests': [], 'nanoseconds': [], 'why': 'there is no more memory'}})\n"


class Answering:
    """A library that answers a code when it is asked for sizes."""

    def __init__(self, library, code):
        self._library, self._code = library, code

    def __getattr__(self, name):
        return getattr(self._library, name) if name != "tidec_host_size" else lambda *given: self._code


@pytest.mark.parametrize("code, found", [(worker.STOPPED, "E008"), (2, "E004")])
def test_sizes_that_cannot_be_had_stop_a_job_with_the_reason(code, found, hosted, monkeypatch):
    opened = host.open_library
    monkeypatch.setattr(host, "open_library", lambda path: Answering(opened(path), code))
    before = shared_memory()
    with pytest.raises(TidecError) as caught:
        run_host(job_of(PLANS[3], hosted))
    assert caught.value.exit is Exit.ENVIRONMENT and [d.code for d in caught.value.diagnostics] == [found] and caught.value.diagnostics[0].help and shared_memory() == before


def test_shared_memory_that_cannot_be_mapped_stops_a_job_with_the_reason(hosted, monkeypatch):
    def refuse(file, num_bytes):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(host.mmap, "mmap", refuse)
    with pytest.raises(TidecError, match=r"E008 no-memory\]: the reduce-scatter cannot have its shared memory\n  reason: rank 0 of 4, .*iB each: Cannot allocate memory\n  help: "):
        run_host(job_of(PLANS[3], hosted))
