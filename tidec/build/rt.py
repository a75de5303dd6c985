"""tidec_rt: the loader module of this Python, built once for all bundles and kept apart from them."""
from __future__ import annotations

import os
import sysconfig
import tempfile
from pathlib import Path

from tidec.build.toolchain import find_compiler, pybind11_include, run_tool
from tidec.emit.manifest import canonical, sha256
from tidec.errors import Diagnostic, TidecError
from tidec.shipped import folder

NAME = "tidec_rt"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
BUILD_S = 300.0
_DIGITS = 16


def rt_file(where: Path) -> Path:
    """Where the module of this Python ABI and of these sources is kept in a folder, built or not."""
    sources = [path.read_text(encoding="utf-8") for path in _sources()]
    digest = sha256(canonical([sources, list(FLAGS), _suffix()]).encode())
    return where / f"{NAME}-{digest[:_DIGITS]}{_suffix()}"


def build_rt(where: Path, *, deadline_s: float = BUILD_S) -> Path:
    """The module in a folder, built if it is not there. It is built aside and renamed, so that nobody sees half of it.

    Raises E001 without pybind11; E002 where the compiler is missing or fails; E003 where the folder cannot be written.
    """
    target = rt_file(where)
    if target.is_file():
        return target
    source, *_ = _sources()
    include = [pybind11_include(), Path(sysconfig.get_path("include")), folder("runtime") / "include"]
    try:
        where.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix=".rt-", dir=where, ignore_cleanup_errors=True) as beside:
            built = Path(beside) / target.name
            run_tool((*find_compiler().command, *FLAGS, "-shared", *(f"-I{p}" for p in include), str(source), "-ldl", "-o", str(built)), deadline_s=deadline_s)
            os.replace(built, target)
    except OSError as problem:
        raise TidecError(Diagnostic("E003", f"{where} cannot be written", reason=problem.strerror or str(problem), help="set TIDEC_CACHE_DIR to a folder of your own")) from problem
    return target


def _sources() -> tuple[Path, ...]:
    runtime = folder("runtime")
    return runtime / "rt" / "tidec_rt.cpp", *(runtime / "include" / "tidec" / name for name in ("module.hpp", "node.h"))


def _suffix() -> str:
    """As in .cpython-312-x86_64-linux-gnu.so."""
    return sysconfig.get_config_var("EXT_SUFFIX")
