"""What is read off a profiler's trace, on one made by hand in the form that torch.profiler writes on a GPU."""
from __future__ import annotations

import pytest


def kernel(name: str, ts: float, dur: float, grid: tuple, stream: int = 20) -> dict:
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": {
        "External id": 7, "queued": 0, "device": 0, "context": 1, "stream": stream, "correlation": 9, "registers per thread": 96, "grid": list(grid), "block": [512, 1, 1]}}


def copy(name: str, ts: float, dur: float, num_bytes: int, cat: str = "gpu_memcpy") -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 21, "ts": ts, "dur": dur, "args": {"device": 0, "stream": 21, "bytes": num_bytes, "memory bandwidth (GB/s)": 1.0}}


def mark(name: str, ts: float, dur: float, cat: str = "user_annotation") -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": 100, "tid": 100, "ts": ts, "dur": dur, "args": {"External id": 1}}


# Two calls of a reduce-scatter behind a gate: a sum on 8 CTAs for 100 us and one on 200 of 132 multiprocessors for 10 us in each, and a copy to the peer.
TRACE = {"schemaVersion": 1, "traceEvents": [
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 0, "tid": 20, "ts": 900},
    kernel("at::cuda::(anonymous namespace)::spin_kernel(long)", 1000, 4000, (1, 1, 1)), kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 5000, 20, (24, 1, 1)),
    kernel("void tidec::cuda::kernel<Sum<Bf16, 2>>(SumCall)", 5100, 100, (8, 1, 1)), kernel("void tidec::cuda::kernel<Sum<Bf16, 2>>(SumCall)", 5300, 100, (8, 1, 1)),
    kernel("wide(int)", 5200, 10, (20, 10, 1)), kernel("wide(int)", 5400, 10, (20, 10, 1)),
    copy("Memcpy PtoP (Device -> Device)", 5050, 80, 1 << 20), copy("Memcpy DtoD (Device -> Device)", 5060, 5, 1 << 10), copy("Memset (Device)", 5061, 2, 64, "gpu_memset"),
    mark("FSDP::all_gather (layers.0)", 5000, 50), mark("tidec::reduce_scatter (layers.0)", 5100, 50, "gpu_user_annotation"), mark("something else", 5100, 50),
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 100, "tid": 100, "ts": 5005, "dur": 9, "args": {}},
]}


def test_kernels_copies_and_their_multiprocessors_by_hand(program):
    of = program("traced")
    kernels = of.kernels_of(TRACE)
    assert [(k.ctas, k.us) for k in kernels] == [(1, 4000), (24, 20), (8, 100), (200, 10), (8, 100), (200, 10)]
    assert of.sm_us(kernels[2:], 132) == 2 * (8 * 100 + 132 * 10)
    assert [(c.kind, c.bytes, c.us) for c in of.copies_of(TRACE)] == [("peer", 1 << 20, 80), ("home", 1 << 10, 5), ("fill", 64, 2)]
    assert of.by_name(kernels[2:], calls=2)[1] == {"name": "wide", "ctas": 200, "num": 1, "us": 10}


def test_gates_are_no_part_of_a_call_and_a_repeated_measurement_is_counted(program):
    pytest.importorskip("torch")
    of = program("sm_time")
    told = of.told_of(TRACE, calls=2, sms=132)
    assert told["sm_us"] == 8 * 100 + 132 * 10 and told["home_copy_us"] == 2.5 and len(told["kernels"]) == 2
    twice = {"traceEvents": TRACE["traceEvents"] * 2}
    assert of.told_of(twice, calls=2, sms=132)["sm_us"] == told["sm_us"]


def test_a_kernel_without_a_grid_is_no_kernel_of_no_multiprocessors(program):
    with pytest.raises(KeyError):
        program("traced").kernels_of({"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": 1, "args": {"stream": 7}}]})


def test_a_small_trace_has_the_work_of_streams_and_the_marks(program):
    events = program("traced").slim(TRACE, label="stock", pid=3)
    shown = [e for e in events if e["ph"] == "X"]
    assert {e["pid"] for e in events} == {3} and min(e["ts"] for e in shown) == 0
    assert sorted(e["cat"] for e in shown) == ["gpu_memcpy"] * 2 + ["gpu_memset", "gpu_user_annotation"] + ["kernel"] * 6 + ["user_annotation"]
    assert not {"something else", "aten::mm"} & {e["name"] for e in shown} and "wide" in {e["name"] for e in shown}


def test_without_a_gpu_outermost_operators_are_the_work(program):
    ops = [{"ph": "X", "cat": "cpu_op", "name": n, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": {}} for n, ts, dur in (("linear", 0, 10), ("mm", 2, 3), ("add", 10, 1))]
    assert [e["name"] for e in program("traced").slim({"traceEvents": ops}, label="", pid=0) if e["ph"] == "X"] == ["linear", "add"]


def test_kernels_of_the_computation_that_follow_one_another_become_one(program):
    of = program("traced")
    trace = {"traceEvents": [kernel("gemm", 0, 10, (4, 1, 1)), kernel("add", 12, 3, (4, 1, 1)), kernel("gemm", 16, 4, (4, 1, 1), 21), kernel("ncclDevKernel_X", 16, 1, (4, 1, 1)),
                             kernel("gemm", 18, 1, (4, 1, 1)), kernel("gemm", 40, 1, (4, 1, 1))]}
    shown = [(e["name"], e["ts"], e["dur"]) for e in of.merged(of.slim(trace, label="", pid=0)) if e["ph"] == "X"]
    assert shown == [("2 kernels", 0, 15), ("gemm", 16, 4), ("ncclDevKernel_X", 16, 1), ("gemm", 18, 1), ("gemm", 40, 1)]
