"""A bundle's library for one target: its sources and the runtime's, compiled aside, and published with a log and digests.

    lib/<target>-<architecture>.so    one plain C library, no Python inside
    build.log                         what the compilers said, one part a target
    build.json, build.sha256          sizes and sha256 of both under "files"; under "targets" what each was built with; and the sha256 of that

None of them holds a time or a path of this machine, so the same compiler gives the same bytes.

build.sha256 goes first and comes last, so what a kill leaves has none, and counts as no build: the next one makes it again. Where it stands, every file is
what it says, or somebody changed it.
"""
from __future__ import annotations

import json
import os
import platform
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidec.build.beside import alone, beside
from tidec.build.cuda import FLAGS as CUDA_FLAGS, compile_library, find_tools
from tidec.build.toolchain import Compiler, find_architecture, find_compiler, run_tool
from tidec.emit.bundle import SEAL
from tidec.emit.manifest import canonical, sha256
from tidec.emit.place import sync
from tidec.emit.render import MODULE
from tidec.emit.targets import Target, target as find_target
from tidec.errors import Diagnostic, TidecError
from tidec.shipped import folder

SCHEMA = "tidec.build/1"
LIB, LOG, BUILD, BUILD_SEAL = "lib", "build.log", "build.json", "build.sha256"
# NOTE: without -ffp-contract=off a product may be fused into a sum, which gives other bits; -fno-gnu-unique keeps the tables of two bundles that one
# process has loaded apart.
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-pthread", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-Wextra")
BUILD_S = 300.0


@dataclass(frozen=True, slots=True)
class Built:
    """A published library. is_new: it was built by this call, and not found."""

    path: Path
    target: str
    architecture: str
    is_new: bool


def library_name(target: str, architecture: str = platform.machine()) -> str:
    """The library's place inside its bundle."""
    return f"{LIB}/{target}-{architecture}.so"


def build_library(bundle: Path, target: str, *, flags: Sequence[str] = (), deadline_s: float = BUILD_S) -> Built:
    """The library of a bundle for a target; one that was built from the same sources, with the same compiler and flags, is used as it is.

    bundle: its folder, whose files are trusted: read the bundle first. flags: more arguments of the compiler.
    Guaranteed: a build that fails leaves the bundle as it was; one that is killed leaves it as it was, or without a library; what it left beside the bundle
    goes with the next one.
    Raises C001 where a library is there and is not what was built; E002 with the end of what the compiler said; E003 where the bundle's folder cannot be
    written; E004 for targets that are not built.
    """
    row = find_target(target)
    assert row.has_library, target
    architecture = _architecture(row)
    name, key, known = library_name(target, architecture), f"{target}-{architecture}", _checked(bundle)
    runtime = _sources("include/tidec", *row.folders)
    sources, missing = _digest(bundle, row, runtime, flags), None
    try:
        compiler = _compiler(row)
    except TidecError as error:
        compiler, missing = None, error
    if _serves(known, key, sources, compiler):
        return Built(bundle / name, target, architecture, False)
    if missing is not None:
        raise missing
    try:
        with beside(bundle) as aside:
            said = _compile(bundle, aside, row, runtime, compiler, flags, deadline_s)
            entry = {"architecture": architecture, "compiler": compiler.version, "flags": [*_flags(row), *flags], "sources": sources}
            with alone(bundle):
                is_new = not _serves(known := _checked(bundle), key, sources, compiler)     # else another process was sooner
                if is_new:
                    _publish(bundle, aside, key, name, said, entry, known)
    except OSError as problem:
        raise TidecError(Diagnostic("E003", f"{bundle} cannot be written", reason=problem.strerror or str(problem), help="copy the bundle to a folder of your own")) from problem
    return Built(bundle / name, target, architecture, is_new)


def has_library(bundle: Path, target: str) -> bool:
    """Whether `build_library` would find the library of a bundle for a target, and build nothing. Raises E002 where there is no compiler."""
    known = _known(bundle)
    if not known:
        return False
    row = find_target(target)
    sources = _digest(bundle, row, _sources("include/tidec", *row.folders), ())
    return _serves(known, f"{target}-{_architecture(row)}", sources, _compiler(row))


def kept_library(bundle: Path, target: str) -> Path | None:
    """The library of a bundle for a target if it is there and was built from the sources of this version, by any compiler; nothing is built."""
    row = find_target(target)
    architecture, known = _architecture(row), _known(bundle)
    serves = _serves(known, f"{target}-{architecture}", _digest(bundle, row, _sources("include/tidec", *row.folders), ()), None)
    return bundle / library_name(target, architecture) if serves else None


def _architecture(row: Target) -> str:
    return find_architecture() if row.is_cuda else platform.machine()


def _compiler(row: Target) -> Compiler:
    return find_tools().compiler if row.is_cuda else find_compiler()


def _flags(row: Target) -> tuple[str, ...]:
    return CUDA_FLAGS if row.is_cuda else FLAGS


def _serves(known: Mapping, key: str, sources: str, compiler: Compiler | None) -> bool:
    """Whether the library that is there is the one that would be built; without a compiler, any compiler's is."""
    entry = known.get("targets", {}).get(key, {})
    return entry.get("sources") == sources and (compiler is None or entry.get("compiler") == compiler.version)


def _digest(bundle: Path, row: Target, runtime: Sequence[tuple[str, Path]], flags: Sequence[str]) -> str:
    """sha256 of everything that a library is built from."""
    sources = [[name, sha256(path.read_bytes())] for name, path in runtime]
    return sha256(canonical([(bundle / SEAL).read_text(encoding="ascii"), sources, [*_flags(row), *flags], row.runner]).encode())


def _sources(*folders: str) -> tuple[tuple[str, Path], ...]:
    """Every source of the runtime in these folders, by its name."""
    runtime = folder("runtime")
    return tuple((f"{f}/{p.name}", p) for f in folders for p in sorted((runtime / f).iterdir()) if p.suffix in (".hpp", ".cpp", ".h", ".cuh"))


def _compile(
    bundle: Path, aside: Path, row: Target, runtime: Sequence[tuple[str, Path]], compiler: Compiler, flags: Sequence[str], deadline_s: float,
) -> str:
    """Compile into <aside>/library.so, from copies: what the compiler says then names no path of this machine. Returns what it said."""
    for path in bundle.iterdir():
        if path.suffix in (".hpp", ".cpp", ".cu"):
            shutil.copyfile(path, aside / path.name)
    for name, path in runtime:
        copy = aside / "runtime" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    units = [MODULE, *(f"runtime/{name}" for name, path in runtime if path.suffix == ".cpp")]
    if row.is_cuda:
        return compile_library(aside, row, find_tools(), units, flags=flags, deadline_s=deadline_s)
    unique = ("-fno-gnu-unique",) if "g++" in Path(compiler.command[0]).name and "clang" not in compiler.version else ()
    command = (*compiler.command, *FLAGS, *unique, *flags, "-shared", f'-DTIDEC_RUNNER="{row.runner}"', "-Iruntime/include", "-Iruntime", "-I.", *units, "-o", "library.so")
    return run_tool(command, deadline_s=deadline_s, folder=aside)


def _publish(bundle: Path, aside: Path, key: str, name: str, said: str, entry: Mapping[str, object], known: Mapping) -> None:
    kept = {k: v for k, v in known.get("targets", {}).items() if k != key}
    files = {library: known["files"][library] for library in (f"{LIB}/{k}.so" for k in kept)}
    log = "".join(f"== {k}\n{text}" for k, text in sorted({**_log_parts(bundle, kept), key: said}.items()))
    (aside / LOG).write_text(log, encoding="utf-8")
    for path, place in ((aside / "library.so", name), (aside / LOG, LOG)):
        data = path.read_bytes()
        files[place] = {"size": len(data), "sha256": sha256(data)}
    build = canonical({"schema": SCHEMA, "files": files, "targets": {**kept, key: dict(entry)}})
    (aside / BUILD).write_text(build, encoding="ascii")
    (aside / BUILD_SEAL).write_text(f"{sha256(build.encode())}  {BUILD}\n", encoding="ascii")
    for path in (aside / "library.so", aside / LOG, aside / BUILD, aside / BUILD_SEAL):
        sync(path)
    # NOTE: from here to the last line the bundle has no build.sha256, which is how a build that never ended is known.
    with suppress(FileNotFoundError):
        os.unlink(bundle / BUILD_SEAL)
        sync(bundle)
    (bundle / LIB).mkdir(exist_ok=True)
    for left in (bundle / LIB).iterdir():
        if f"{LIB}/{left.name}" not in files:
            os.unlink(left)
    for path, place in ((aside / "library.so", name), (aside / LOG, LOG), (aside / BUILD, BUILD)):
        os.replace(path, bundle / place)
    sync(bundle / LIB)
    sync(bundle)
    os.replace(aside / BUILD_SEAL, bundle / BUILD_SEAL)
    sync(bundle)


def is_unfinished(bundle: Path) -> bool:
    """Whether a build was stopped while it was published: nothing of it is ever used, and the next build replaces it."""
    return not os.path.lexists(bundle / BUILD_SEAL) and any(os.path.lexists(bundle / name) for name in (LIB, LOG, BUILD))


def _checked(bundle: Path) -> Mapping:
    """build.json, or nothing where no build ended. Raises C001 naming the file that is not what was built."""
    if not os.path.lexists(bundle / BUILD_SEAL):
        return {}
    at = BUILD
    try:
        text = _read(bundle / BUILD)
        if _read(bundle / BUILD_SEAL) != f"{sha256(text)}  {BUILD}\n".encode():
            raise ValueError(f"its sha256 is not the one in {BUILD_SEAL}")
        known = json.loads(text)
        for at, said in known["files"].items():
            data = _read(bundle / at)
            if (len(data), sha256(data)) != (said["size"], said["sha256"]):
                raise ValueError(f"its size or sha256 is not the one in {BUILD}")
        return known if known["schema"] == SCHEMA else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise TidecError(Diagnostic(
            "C001", f"{at} of {bundle} is not what was built there", reason=getattr(problem, "strerror", None) or str(problem),
            help=f"find out who changed it, then remove {LIB}, {LOG}, {BUILD} and {BUILD_SEAL}: they are built again")) from problem


def _known(bundle: Path) -> Mapping:
    """build.json, where it is there and every file that it lists is what it says; else nothing."""
    try:
        return _checked(bundle)
    except TidecError:
        return {}


def _read(path: Path) -> bytes:
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise ValueError("it is no file")
    return path.read_bytes()


def _log_parts(bundle: Path, keys: Mapping) -> dict[str, str]:
    """What the log says of these targets."""
    parts: dict[str, str] = {}
    if keys:
        for part in (bundle / LOG).read_text(encoding="utf-8").split("== ")[1:]:
            key, _, text = part.partition("\n")
            if key in keys:
                parts[key] = text
    return parts
