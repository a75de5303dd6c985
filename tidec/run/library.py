"""Opens a bundle to run it: everything in it is re-checked, and its library is found, or built where that is allowed.

Nothing of a bundle is loaded before its digests, its plans and its certificates hold. The switches of a job are read here: TIDEC_NO_BUILD=1, what is not
there is an error; TIDEC_DISABLE=1, nothing is installed; TIDEC_REQUIRE=1, what stays stock is an error.
"""
from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tidec.build.library import build_library, is_unfinished, kept_library
from tidec.build.rt import NAME, build_rt, rt_file
from tidec.cache.key import Cache, cache_of
from tidec.emit.bundle import Bundle, read_bundle
from tidec.errors import Diagnostic, TidecError
from tidec.inputs.document import quoted
from tidec.run.environment import settings
from tidec.run.worker import Program
from tidec.verify.recheck import recheck

NO_BUILD = "TIDEC_NO_BUILD"
DISABLE = "TIDEC_DISABLE"
REQUIRE = "TIDEC_REQUIRE"
ON_GPUS = ("nccl", "loopback")
_SYMBOLS = ("tidec_num_programs", "tidec_program_at", "tidec_issue")


@dataclass(frozen=True, slots=True)
class Opened:
    """A bundle that may be run. library: for the target.  programs: of each plan of the bundle, in order, its number in the library.

    notes: variables of the environment that are not as the plans need them.
    """

    bundle: Bundle
    target: str
    library: Path
    programs: tuple[int, ...]
    notes: tuple[Diagnostic, ...] = ()


def open_bundle(path: Path, target: str, *, has_begun: bool = False) -> Opened:
    """Re-check a bundle and give it with its library for a target, built if it is not there. has_begun: this process uses a GPU already.

    On GPUs what the plans need of the environment is set, where nobody has set it: this comes before the first communicator.
    Raises what `recheck` raises; C001 where the library is not the bundle's; E002 where it has to be built and cannot be, or TIDEC_NO_BUILD forbids it.
    """
    recheck(path)
    bundle = read_bundle(path)
    library = kept_library(path, target)
    if library is None:
        unfinished = ": a build of it was stopped before it ended" if is_unfinished(path) else ""
        may_build(f"{path} has no library for target {target}{unfinished}", f"tidec compile -o DIR --target {target} builds it")
        library = build_library(path, target).path
    programs = _programs(library, bundle)
    if target not in ON_GPUS:
        return Opened(bundle, target, library, programs)
    return Opened(bundle, target, library, programs, set_environment(bundle, has_begun=has_begun))


def set_environment(bundle: Bundle, *, has_begun: bool = False) -> tuple[Diagnostic, ...]:
    """Set in this process what plans on GPUs need of the environment and nobody has set; a warning for each variable that is otherwise, or comes too late."""
    found = settings(bundle.environment, os.environ, has_begun=has_begun)
    os.environ.update(found.values)
    return found.notes


def load_rt(where: Path) -> ModuleType:
    """The module tidec_rt of this Python, kept in a folder, built if it is not there. Raises E001, E002, E003."""
    file = rt_file(where)
    if not file.is_file():
        may_build(f"{NAME} is not built for this Python ({platform.python_version()})", f"unset {NO_BUILD} once")
        file = build_rt(where)
    spec = importlib.util.spec_from_file_location(NAME, file)
    assert spec is not None and spec.loader is not None, file
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as problem:
        raise TidecError(Diagnostic("E002", f"{file.name} cannot be loaded", reason=str(problem), help="remove it: it is built again")) from problem
    return module


def is_disabled() -> bool:
    """Whether TIDEC_DISABLE=1. Raises P001 where it is neither 0 nor 1."""
    return _is_on(DISABLE)


def is_required() -> bool:
    """Whether TIDEC_REQUIRE=1. Raises P001 where it is neither 0 nor 1."""
    return _is_on(REQUIRE)


def _is_on(name: str) -> bool:
    value = os.environ.get(name, "")
    if value not in ("", "0", "1"):
        raise TidecError(Diagnostic("P001", f"{name} is {quoted(value)}", help="write 1, or unset it"))
    return value == "1"


def may_build(sentence: str, help: str) -> None:
    """Raises E002 where TIDEC_NO_BUILD=1. sentence: what is not there.  help: what to do about it."""
    if _is_on(NO_BUILD):
        raise TidecError(Diagnostic("E002", sentence, reason=f"{NO_BUILD}=1 forbids to compile it here", help=help))


def _programs(library: Path, bundle: Bundle) -> tuple[int, ...]:
    """Which program of the library each plan is."""
    try:
        opened = ctypes.CDLL(os.fspath(library))
    except OSError as problem:
        raise TidecError(Diagnostic("E002", f"{library.name} cannot be loaded", reason=str(problem),
                                    help="build it on this machine: tidec compile --force --target ...")) from problem
    missing = [name for name in _SYMBOLS if not hasattr(opened, name)]
    if missing:
        raise _other(library, f"it has no {missing[0]}")
    opened.tidec_num_programs.restype = ctypes.c_int64
    opened.tidec_program_at.restype, opened.tidec_program_at.argtypes = ctypes.POINTER(Program), [ctypes.c_int64]
    numbers = {opened.tidec_program_at(i).contents.plan_digest.decode(): i for i in range(opened.tidec_num_programs())}
    for plan in bundle.plans:
        if plan.digest not in numbers:
            raise _other(library, f"it does not hold plan {plan.digest[:12]}")
    return tuple(numbers[plan.digest] for plan in bundle.plans)


def _other(library: Path, reason: str) -> TidecError:
    return TidecError(Diagnostic("C001", f"{library.name} is not the library of this bundle", reason=reason, help="compile the bundle again"))


def kept_cache() -> tuple[Cache, tuple[Diagnostic, ...]]:
    """The cache that the environment names, and a warning for each layer that is left out. Raises P001, C003."""
    return cache_of(os.environ)
