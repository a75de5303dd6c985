"""The nvcc step: a bundle's kernels and a CUDA target's runtime as one library, and what the kernels take of a multiprocessor.

ptxas says of every kernel its registers, its static shared memory and whether it spills; spills are an error, for they cost more than any choice of
tiles gains. Dynamic shared memory is in the headers of runtime/cuda.
"""
from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidec.build.toolchain import Compiler, Nvcc, find_architecture, find_compiler, find_nvcc, run_tool
from tidec.emit.render import KERNELS
from tidec.emit.targets import Target
from tidec.errors import Diagnostic, TidecError

# -ffp-contract: of the host's code; kernels say how every operation rounds.
FLAGS = ("-std=c++17", "-O3", "-Xcompiler", "-fPIC,-pthread,-ffp-contract=off,-fvisibility=hidden,-Wall,-Wextra")
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
_NOISE = re.compile(r"^.*(Compile time|bytes gmem|Function properties for|^$).*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes. name: its symbol.  spill_bytes: stores and loads together.  shared_bytes: static ones."""

    name: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True, slots=True)
class CudaTools:
    """What a library of a CUDA target is compiled with. compiler: nvcc and its host compiler, by their versions."""

    nvcc: Nvcc
    compiler: Compiler
    architecture: str


def find_tools() -> CudaTools:
    """nvcc, its host compiler, and the architecture. Raises E002 where one is missing or too old."""
    nvcc, host = find_nvcc(), find_compiler()
    return CudaTools(nvcc, Compiler(nvcc.command, f"{nvcc.version}, {host.version}"), find_architecture())


def compile_kernels(source: Path, target: Path, nvcc: Nvcc, architecture: str, *, include: Sequence[Path], flags: Sequence[str] = (), deadline_s: float) -> str:
    """Compile a kernels.cu, in its folder, to `target`, an object or by the flags a cubin. Gives what nvcc and ptxas said, without times.

    Raises E002 where nvcc fails, or where a kernel spills registers.
    """
    command = (*nvcc.command, *FLAGS, *flags, f"-arch={architecture}", "-Xptxas", "-v", *(f"-I{p}" for p in include), "-c", source.name, "-o", str(target))
    said = run_tool(command, deadline_s=deadline_s, folder=source.parent)
    spilt = [r.name for r in resources(said) if r.spill_bytes]
    if spilt:
        raise TidecError(Diagnostic("E002", f"{len(spilt)} kernels spill registers", reason=f"{nvcc.version} for {architecture}", example=tuple(spilt[:3]),
                                    help="report this: with another release of nvcc they may fit"))
    return "\n".join(line for line in _NOISE.sub("", said).splitlines() if line.strip()) + "\n"


def compile_library(aside: Path, row: Target, tools: CudaTools, units: Sequence[str], *, flags: Sequence[str] = (), deadline_s: float) -> str:
    """Compile <aside>/library.so from the sources in <aside> and its runtime/. units: what is compiled beside the kernels.

    Returns what the tools said.  Raises E002.
    """
    include = [Path("runtime/include"), Path("runtime"), Path(".")]
    virtual = ("-DTIDEC_VIRTUAL_SWITCH",) if row.is_virtual else ()
    said = compile_kernels(aside / KERNELS, Path("kernels.o"), tools.nvcc, tools.architecture, include=include, flags=(*virtual, *flags), deadline_s=deadline_s)
    command = (
        *tools.nvcc.command, *FLAGS, *virtual, *flags, f"-arch={tools.architecture}", "-shared", f'-DTIDEC_RUNNER="{row.runner}"', *(f"-I{p}" for p in include),
        *units, "kernels.o", "-o", "library.so",
    )
    return said + run_tool(command, deadline_s=deadline_s, folder=aside)


def resources(said: str) -> tuple[Resources, ...]:
    """What ptxas said of every kernel, in its order."""
    found, name, stack, spill = [], "", 0, 0
    for line in said.splitlines():
        if entry := _ENTRY.search(line):
            name, stack, spill = entry[1], 0, 0
        elif (spills := _SPILLS.search(line)) and name:
            stack, spill = stack + int(spills[1]), spill + int(spills[2]) + int(spills[3])
        elif (used := _USED.search(line)) and name:
            found.append(Resources(name, int(used[1]), int(used[2] or 0), stack, spill))
            name = ""
    return tuple(found)
