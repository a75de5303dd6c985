"""The kernels of runtime/cuda alone, on one GPU: bit for bit against numpy, and their rate a CTA.

    python3 examples/measure/kernels.py [--built DIR [--only-build]] [--out FILE]

A sum is checked at drawn shapes, alignments and CTA counts, then timed over P = 30 pieces. Rates count bytes read and written.
DIR: where the compiled kernels are, or are put. Needs torch, numpy and, unless they are there, nvcc.
"""
from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch

from tidec.build.cuda import compile_kernels, find_tools
from tidec.build.toolchain import run_tool
from tidec.shipped import folder

# Types and lane counts, in the order of the table below.
SUMS = (("bf16", 2), ("bf16", 8), ("fp16", 2), ("fp32", 2), ("bf16", 1), ("bf16", 4))
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SOURCE = """#include "cuda/launch.cuh"
namespace tidec::cuda {{
static const Launcher<SumCall> kSums[] = {{{sums}}};
}}
#define EXPORTED extern "C" __attribute__((visibility("default")))
EXPORTED int prepare(int which) {{ const int e = tidec::cuda::kSums[which].prepare(); return e ? e : cudaDeviceSynchronize(); }}
EXPORTED int sum(int which, char* into, const char* const* staged, const tidec::cuda::SumPiece* pieces, int64_t num, float alpha, int adds, int ctas, void* stream) {{
  return tidec::cuda::kSums[which].launch({{into, staged, pieces, num, alpha, adds != 0}}, ctas, static_cast<cudaStream_t>(stream));
}}
"""
NAMES = {"bf16": "Bf16", "fp16": "Fp16", "fp32": "float"}


def build(where: Path) -> ctypes.CDLL:
    if (where / "kernels.so").is_file():
        return ctypes.CDLL(str(where / "kernels.so"))
    tools, runtime = find_tools(), folder("runtime")
    (where / "kernels.cu").write_text(SOURCE.format(sums=", ".join(f"launcher<Sum<{NAMES[t]}, {lanes}>>()" for t, lanes in SUMS)), encoding="utf-8")
    compile_kernels(where / "kernels.cu", Path("kernels.o"), tools.nvcc, tools.architecture, include=(runtime / "include", runtime), deadline_s=300)
    run_tool((*tools.nvcc.command, "-shared", "kernels.o", "-o", "kernels.so"), deadline_s=60, folder=where)
    return ctypes.CDLL(str(where / "kernels.so"))


def pointers(tensors: list[torch.Tensor]) -> ctypes.Array:
    return (ctypes.c_void_p * max(1, len(tensors)))(*(t.data_ptr() for t in tensors))


def launch(library: ctypes.CDLL, which: int, into: int, staged: ctypes.Array, table: np.ndarray, alpha: float, adds: bool, ctas: int) -> None:
    code = library.sum(which, ctypes.c_void_p(into), staged, ctypes.c_void_p(table.ctypes.data), ctypes.c_int64(len(table)), ctypes.c_float(alpha), int(adds), ctas,
                       ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    assert code == 0, f"CUDA error {code}"


def is_right(library: ctypes.CDLL, which: int, seed: int, adds: bool) -> bool:
    """One drawn sum: every value that a piece covers, and none beside."""
    draw, (name, lanes) = np.random.default_rng(seed), SUMS[which]
    item, dtype = TYPES[name].itemsize, TYPES[name]
    is_aligned, shift = seed % 4 == 0, seed % 4
    rectangles, end = [], 0 if is_aligned else int(draw.integers(0, 8))
    for _ in range(600 if seed == 5 else 7 + 5 * seed):
        width = int(draw.integers(1, 40 if seed % 3 == 0 else 9000))
        rectangles.append((end, (width + 7) // 8 * 8 if is_aligned else width, int(draw.integers(1, 4))))
        end += rectangles[-1][1] + (0 if is_aligned else int(draw.integers(0, 5)))
    row = (end + 24) // 8 * 8
    staged = [torch.randn(4 * row + 64, device="cuda").to(dtype) for _ in range(lanes - 1)]
    into = torch.randn(4 * row + 80, device="cuda")
    before, alpha = into.cpu().numpy().copy(), np.float32(draw.choice([1.0, 0.5, 1 / 3]))
    wanted, others, owns, table = before.copy(), [s.float().cpu().numpy() for s in staged], [], []
    for at, width, rows in rectangles:
        first, pitch = (0, width + 8) if is_aligned else (int(draw.integers(0, 8)), width + int(draw.integers(0, 9)))
        own = torch.randn(first + pitch * rows + 16, device="cuda").to(dtype)
        owns.append(own)
        values = own.float().cpu().numpy()
        table.append((own.data_ptr() + first * item, pitch * item, at * item, row * item, at * 4, row * 4, width, rows))
        for r in range(rows):
            total = np.zeros(width, np.float32)
            for other in others:
                total = total + other[at + r * row : at + r * row + width]
            total = (total + values[first + r * pitch : first + r * pitch + width]) * alpha
            here = slice(shift + at + r * row, shift + at + r * row + width)
            wanted[here] = before[here] + total if adds else total
    launch(library, which, into.data_ptr() + 4 * shift, pointers(staged), np.array(table, np.int64), float(alpha), adds, (1, 3, 16, 132)[seed % 4])
    torch.cuda.synchronize()
    return bool((into.cpu().numpy().view(np.uint32) == wanted.view(np.uint32)).all())


def milliseconds(call) -> float:
    call()
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def rates(library: ctypes.CDLL, which: int, *, adds: bool = False, own_shift: int = 0) -> dict[str, float]:
    """GB/s a CTA. own_shift: bytes by which own rows are shifted against the staged ones."""
    name, lanes = SUMS[which]
    item, elems, num = TYPES[name].itemsize, (64 << 20) // max(1, lanes // 2), 30
    width = elems // num // 8 * 8
    staged = [torch.randint(0, 255, (elems * item + 64,), dtype=torch.uint8, device="cuda") for _ in range(lanes - 1)]
    own, into = torch.randint(0, 255, (elems * item + 64,), dtype=torch.uint8, device="cuda"), torch.zeros(elems + 16, device="cuda")
    table = np.array([(own.data_ptr() + p * width * item + own_shift, 0, p * width * item, 0, p * width * 4, 0, width, 1) for p in range(num)], np.int64)
    moved = width * num * (lanes * item + (8 if adds else 4))
    found = {}
    for ctas in (1, 4, 8, 16, 32, 132):
        ms = milliseconds(lambda: launch(library, which, into.data_ptr(), pointers(staged), table, 0.5, adds, ctas))
        found[str(ctas)] = round(moved / ms / 1e6 / ctas, 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--built", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only-build", action="store_true", help="compile into DIR, which takes no GPU")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        library = build(asked.built or Path(where))
    if asked.only_build:
        return
    for which in range(len(SUMS)):
        assert library.prepare(which) == 0
    wrong = [(SUMS[w], seed, adds) for w in range(len(SUMS)) for seed in range(12) for adds in (False, True) if not is_right(library, w, seed, adds)]
    print(f"{len(SUMS) * 24} sums, {len(wrong)} wrong", *wrong[:5])
    big = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(2)]
    copy_gbps = 2 * big[0].numel() / milliseconds(lambda: big[0].copy_(big[1])) / 1e6
    rows = [{"type": t, "lanes": lanes, "adds": False, "own_shift": 0, "gbps_a_cta": rates(library, w)} for w, (t, lanes) in enumerate(SUMS)]
    rows += [{"type": "bf16", "lanes": 2, "adds": True, "own_shift": 0, "gbps_a_cta": rates(library, 0, adds=True)},
             {"type": "bf16", "lanes": 2, "adds": False, "own_shift": 2, "gbps_a_cta": rates(library, 0, own_shift=2)}]
    print(f"a copy reads and writes {copy_gbps:.0f} GB/s; sums, GB/s a CTA:")
    for r in rows:
        print(f"  {r['type']} L={r['lanes']} {'adds' if r['adds'] else '':5}{'shifted' if r['own_shift'] else '':8}", *(f"{n}: {x:6.1f}" for n, x in r["gbps_a_cta"].items()))
    if asked.out:
        asked.out.write_text(json.dumps({"machine": torch.cuda.get_device_name(0), "cuda": torch.version.cuda, "copy_gbps": copy_gbps, "wrong": len(wrong), "rows": rows},
                                        indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
