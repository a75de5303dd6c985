"""Which compilers there are, and running them: every command has a deadline, and its output is kept for the message."""
from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidec.errors import Diagnostic, TidecError

_NAMES = ("g++", "c++", "clang++")
_SHOWN_LINES = 6
# Batched copies came with CUDA 12.8; bulk copies and sums in the switch with compute capability 9.0.
MIN_NVCC, MIN_CAPABILITY = (12, 8), (9, 0)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler. command: its program and the arguments that $CXX gives it.  version: the first line that it says about itself."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """The compiler that $CXX names, else the first of g++, c++ and clang++ that is installed.

    Raises E002 where there is none, or where it does not answer.
    """
    named = os.environ.get("CXX", "")
    try:
        command = tuple(shlex.split(named)) if named.strip() else _NAMES
    except ValueError as problem:
        raise _missing(f"CXX is {named!r}, which is no command", str(problem)) from problem
    found = shutil.which(command[0]) if named.strip() else next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        raise _missing(f"the compiler {command[0]} was not found" if named.strip() else "no C++ compiler was found",
                       "CXX names it" if named.strip() else f"looked for {', '.join(_NAMES)} on PATH")
    whole = (found, *command[1:]) if named.strip() else (found,)
    lines = run_tool((*whole, "--version"), deadline_s=20.0).splitlines()
    return Compiler(whole, lines[0].strip() if lines else "")


@dataclass(frozen=True, slots=True)
class Nvcc:
    """nvcc. command: its program, and the host compiler that it is told to use.  release: its version as numbers.  version: as text."""

    command: tuple[str, ...]
    release: tuple[int, int]
    version: str


def find_nvcc() -> Nvcc:
    """nvcc of the folder that $CUDA_HOME names, else of PATH, else of /usr/local/cuda; its host compiler is that of `find_compiler`.

    Raises E002 where there is none, where it does not answer, or where it is older than what the kernels and the copies need.
    """
    home = os.environ.get("CUDA_HOME", "").strip()
    places = (os.path.join(home, "bin", "nvcc"),) if home else ("nvcc", "/usr/local/cuda/bin/nvcc")
    found = next(filter(None, map(shutil.which, places)), None)
    if found is None:
        looked = f"CUDA_HOME is {home}, which has no bin/nvcc" if home else "CUDA_HOME is not set, and there is none on PATH or in /usr/local/cuda/bin"
        raise TidecError(Diagnostic("E002", "nvcc was not found", reason=looked, help=f"install a CUDA toolkit from {_spelt(MIN_NVCC)} on, and set CUDA_HOME to its folder"))
    said = run_tool((found, "--version"), deadline_s=20.0)
    release = re.search(r"release (\d+)\.(\d+)", said)
    if release is None:
        raise TidecError(Diagnostic("E002", f"{found} does not say which release it is", reason=said.strip()[:200], help="set CUDA_HOME to the folder of a CUDA toolkit"))
    numbers = (int(release[1]), int(release[2]))
    if numbers < MIN_NVCC:
        raise TidecError(Diagnostic("E002", f"nvcc {_spelt(numbers)} is too old", reason=f"{found}; found {_spelt(numbers)}, needed {_spelt(MIN_NVCC)}",
                                    help=f"set CUDA_HOME to a CUDA toolkit from {_spelt(MIN_NVCC)} on"))
    return Nvcc((found, "-ccbin", *find_compiler().command[:1]), numbers, f"nvcc {re.sub(r'[^0-9.]', '', said.rpartition('V')[2].split()[0]) or _spelt(numbers)}")


def find_architecture() -> str:
    """What kernels are compiled for, as in sm_90: the compute capability that $TIDEC_CUDA_ARCH names, else that of this machine's first GPU.

    Raises E002 where neither says one, or where it is below what the kernels need.
    """
    named = os.environ.get("TIDEC_CUDA_ARCH", "").strip()
    said, source = (named, "TIDEC_CUDA_ARCH") if named else (_first_capability(), "this machine's GPU")
    numbers = re.fullmatch(r"(\d{1,2})\.(\d)", said)
    if numbers is None:
        raise TidecError(Diagnostic("E002", f"TIDEC_CUDA_ARCH is {named!r}, which is no compute capability" if named else "no GPU says its compute capability",
                                    reason="" if named else "nvidia-smi is missing or lists no GPU", help="set TIDEC_CUDA_ARCH to that of the GPUs, as in 9.0"))
    capability = (int(numbers[1]), int(numbers[2]))
    if capability < MIN_CAPABILITY:
        raise TidecError(Diagnostic("E002", f"compute capability {said} is below {_spelt(MIN_CAPABILITY)}", reason=f"{source} says {said}; bulk copies and sums in the switch need {_spelt(MIN_CAPABILITY)}",
                                    help="run on an H100 or newer; set TIDEC_CUDA_ARCH to compile for other GPUs than this machine's"))
    return f"sm_{capability[0]}{capability[1]}"


def count_gpus() -> int:
    """How many GPUs nvidia-smi lists; 0 where it is missing or does not answer."""
    return len(_capabilities())


def find_driver() -> str:
    """The version of the GPUs' driver, "" where nvidia-smi is missing or does not answer."""
    return next(iter(_asked_of_gpus("driver_version")), "")


def _first_capability() -> str:
    return next(iter(_capabilities()), "")


def _capabilities() -> list[str]:
    return _asked_of_gpus("compute_cap")


def _asked_of_gpus(what: str) -> list[str]:
    """What nvidia-smi says of every GPU."""
    query = shutil.which("nvidia-smi")
    if query is None:
        return []
    try:
        return run_tool((query, f"--query-gpu={what}", "--format=csv,noheader"), deadline_s=20.0).split()
    except TidecError:
        return []


def _spelt(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]}.{numbers[1]}"


def pybind11_include() -> Path:
    """The folder of pybind11's headers. Raises E001 where it is not installed."""
    try:
        import pybind11
    except ImportError as problem:
        raise TidecError(Diagnostic("E001", "building tidec_rt needs pybind11, which is not installed", help='pip install "tidec[compile]"')) from problem
    return Path(pybind11.get_include())


def run_tool(command: Sequence[str], *, deadline_s: float, folder: Path | None = None) -> str:
    """Run a compiler and give what it printed, stdout and stderr together. folder: where it runs; `None` = here.

    Raises E002 with the first lines that it printed where it fails, cannot be started, or takes longer than deadline_s seconds.
    """
    shown = " ".join(shlex.quote(word) for word in command)
    try:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=deadline_s, check=False,
        )
    except subprocess.TimeoutExpired as problem:
        raise _missing(f"the compiler did not end within {deadline_s:.0f} s", shown) from problem
    except OSError as problem:
        raise _missing(f"the compiler {command[0]} cannot be started", problem.strerror or str(problem)) from problem
    if done.returncode:
        told = [line for line in done.stdout.splitlines() if line.strip()]
        errors = [line for line in told if "error" in line] or told
        raise TidecError(Diagnostic("E002", f"the compiler ended with {done.returncode}", reason=shown, example=tuple(errors[:_SHOWN_LINES]),
                                    help="try another compiler: CXX=clang++, or a newer g++ (C++17)"))
    return done.stdout


def _missing(sentence: str, reason: str) -> TidecError:
    return TidecError(Diagnostic("E002", sentence, reason=reason, help="install g++ (apt-get install g++), or set CXX to a C++17 compiler"))
