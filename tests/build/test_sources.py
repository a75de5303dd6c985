"""What is written by hand for GPUs compiles, on a machine without one: every source and every header of runtime/, and what measures beside it."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidec.build.toolchain import find_nvcc, run_tool
from tidec.emit.render import render
from tidec.errors import TidecError
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.lower import lower
from tidec.shipped import folder
from tidec.verify.certificate import Proved

ROOT, RUNTIME = Path(__file__).resolve().parents[2], folder("runtime")
MEASURE = ROOT / "examples" / "measure"
FLAGS = ("-Xcompiler=-fsyntax-only,-Wall,-Wextra,-Wno-missing-field-initializers,-Werror", f"-I{RUNTIME}", f"-I{RUNTIME / 'include'}")
# What other tests compile and run: the host target, the echo, what Python loads, kernels as a bundle has them, and what needs no GPU of the others.
ELSEWHERE = {*(RUNTIME / "host").glob("*.cpp"), RUNTIME / "echo.cpp", RUNTIME / "host_main.cpp", *(RUNTIME / "rt").glob("*.cpp"),
             ROOT / "tests" / "golden" / "emit" / "block.kernels.cu", *(RUNTIME / "cuda" / f"{name}.cpp" for name in ("streams", "terms", "words")), RUNTIME / "nccl" / "signals.cpp"}
SOURCES = sorted({p for name in ("cuda", "loopback", "nccl") for p in (RUNTIME / name).glob("*.cpp")} - ELSEWHERE)


def compiled(*arguments: object) -> None:
    try:
        nvcc = find_nvcc()
    except TidecError as problem:
        pytest.skip(problem.diagnostics[0].sentence)
    run_tool((*nvcc.command, "-std=c++17", *map(str, arguments)), deadline_s=300)


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.relative_to(RUNTIME).as_posix())
def test_a_source_for_gpus_compiles_without_warnings(source, tmp_path):
    """Its types and templates; code is made of it by the tests that build libraries."""
    compiled(*FLAGS, "-c", source, "-o", tmp_path / "none.o")


@pytest.mark.parametrize("target", ["loopback", "nccl"])
def test_the_programs_of_a_bundle_compile_for_targets_on_gpus(target, tmp_path):
    ask = Ask(parse_topology("2x2"), Group("g", 1, (Parameter("w", (7, 3), Dtype.FP32),), param_dtype=Dtype.BF16), Lowering.P2P, parse_knobs(("n_part=2",), 2, nodes=2))
    for made in render([Proved(lower(ask, c), "{}") for c in Collective]):
        (tmp_path / made.name).write_text(made.text, encoding="utf-8")
    compiled(*FLAGS, f'-DTIDEC_RUNNER="{target}/target.hpp"', f"-I{tmp_path}", "-c", tmp_path / "module.cpp", "-o", tmp_path / "none.o")


def test_what_measures_copy_engines_compiles(tmp_path):
    compiled("-arch=sm_90", MEASURE / "engines.cu", "-o", tmp_path / "engines")
    assert (tmp_path / "engines").stat().st_size > 0


def test_what_traces_a_gpu_compiles(tmp_path):
    try:
        compiled(*FLAGS, "-c", MEASURE / "trace.cpp", "-o", tmp_path / "none.o")
    except TidecError as problem:
        if "cupti.h" not in str(problem):
            raise
        pytest.skip("this CUDA toolkit comes without CUPTI")


def includes(file: Path) -> list[Path]:
    """The headers of the runtime that a file names."""
    names = re.findall(r'^#include "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE)
    return [p for name in names for p in (RUNTIME / name, RUNTIME / "include" / name) if p.is_file()]


def test_every_header_is_included_by_a_source_that_a_test_compiles():
    reached, left = {RUNTIME / "loopback" / "target.hpp", RUNTIME / "nccl" / "target.hpp"}, [*SOURCES, *ELSEWHERE, *folder("templates").glob("*.jinja")]
    left += reached
    while left:
        found = set(includes(left.pop())) - reached
        reached |= found
        left += found
    headers = {p for p in RUNTIME.rglob("*") if p.suffix in (".hpp", ".cuh", ".h")}
    assert RUNTIME / "cuda" / "tma.cuh" in headers and not headers - reached, headers - reached
