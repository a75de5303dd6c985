"""tidec_loan: swaps what two storages of torch hold, where torch itself has no call for it; built once a version of torch, beside tidec_rt."""
from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tidec.build.toolchain import find_compiler, run_tool
from tidec.emit.manifest import canonical, sha256
from tidec.errors import Diagnostic, TidecError
from tidec.shipped import folder

NAME = "tidec_loan"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall")
BUILD_S = 300.0
_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Torch:
    """The torch of a process. identity: what its binaries depend on, as text.  include, library: folders of its headers and of libc10.so."""

    identity: str
    include: Path
    library: Path
    is_new_abi: bool


def loan_file(where: Path, torch: Torch) -> Path:
    """Where the library for that torch and of this source is kept in a folder, built or not."""
    digest = sha256(canonical([_source().read_text(encoding="utf-8"), list(FLAGS), torch.identity, torch.is_new_abi]).encode())
    return where / f"{NAME}-{digest[:_DIGITS]}.so"


def build_loan(where: Path, torch: Torch, *, deadline_s: float = BUILD_S) -> Path:
    """The library in a folder, built if it is not there. It is built aside and renamed, so that nobody sees half of it.

    Raises E002 where the compiler is missing or fails, or torch has no headers; E003 where the folder cannot be written.
    """
    target = loan_file(where, torch)
    if target.is_file():
        return target
    try:
        where.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix=".loan-", dir=where, ignore_cleanup_errors=True) as beside:
            built = Path(beside) / target.name
            abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.is_new_abi)}"
            run_tool((*find_compiler().command, *FLAGS, abi, "-shared", f"-isystem{torch.include}", str(_source()), f"-L{torch.library}", "-lc10", "-o", str(built)),
                     deadline_s=deadline_s)
            os.replace(built, target)
    except OSError as problem:
        raise TidecError(Diagnostic("E003", f"{where} cannot be written", reason=problem.strerror or str(problem), help="set TIDEC_CACHE_DIR to a folder of your own")) from problem
    return target


def _source() -> Path:
    return folder("runtime") / "rt" / "tidec_loan.cpp"
