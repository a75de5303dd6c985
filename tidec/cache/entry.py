"""What one kept bundle is: its files with their digests, every one of them checked.

    <cache>/<digest>/          digest: sha256 of its manifest.json, which lists every other file
        lib/*.so build.log     what a build added: listed, with sizes and sha256, in build.json, whose own is in build.sha256

Two names are one entry: `<digest>` and `<digest>.<name>`, the spare of a process that could not see the first (see store.py).
"""
from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from tidec.emit.bundle import SEAL
from tidec.emit.manifest import FILE_NAME
from tidec.emit.place import MANIFEST
from tidec.errors import Diagnostic, TidecError

NAME = re.compile(r"([0-9a-f]{64})(?:\.[0-9a-f]{16})?")
LIB, LOG, BUILD, BUILD_SEAL = "lib", "build.log", "build.json", "build.sha256"
_BUILT_NAME = re.compile(r"build\.log|lib/[A-Za-z0-9][A-Za-z0-9._-]*")
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class File:
    """A file of an entry. name: its path inside, with `/`."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A checked bundle. written, built: what the compile wrote and what a build added, each in order of name; built is empty where there was no build."""

    path: Path
    digest: str
    written: tuple[File, ...]
    built: tuple[File, ...]

    @property
    def bytes(self) -> int:
        return sum(f.size for f in (*self.written, *self.built))


def entry_folders(folder: Path) -> tuple[Path, ...]:
    """What has the name of an entry in a cache folder or a layer, in order; nothing is read of it."""
    try:
        return tuple(folder / name for name in sorted(os.listdir(folder)) if NAME.fullmatch(name))
    except FileNotFoundError:
        return ()


def digest_of(path: Path) -> str:
    """The digest in the name of an entry's folder."""
    found = NAME.fullmatch(path.name)
    assert found, path
    return found[1]


def check_entry(path: Path, digest: str) -> Entry:
    """Hold every file of an entry against its digest, down from the name of its folder; files are read in pieces, and nothing is understood of them.

    Raises C001 naming the file that is not what was written, with the entry's folder.
    """
    try:
        is_folder, there = stat.S_ISDIR(os.lstat(path).st_mode), sorted(os.listdir(path))
    except OSError as error:
        raise tampered(path, path.name, error.strerror or str(error)) from error
    if not is_folder:
        raise tampered(path, path.name, "it is no folder")
    manifest = _hashed(path, MANIFEST)
    if manifest.sha256 != digest:
        raise tampered(path, MANIFEST, f"its sha256 is not {digest[:12]}..., the name of its folder")
    seal = _hashed(path, SEAL)
    if _text(path, SEAL) != f"{digest}  {MANIFEST}\n":
        raise tampered(path, SEAL, f"it is not the sha256 of {MANIFEST}")
    written = _listed(path, MANIFEST, FILE_NAME)
    for name in there:
        if name not in (MANIFEST, SEAL, LIB, LOG, BUILD, BUILD_SEAL) and all(f.name != name for f in written):
            raise tampered(path, name, f"{MANIFEST} does not list it")
    return Entry(path, digest, _ordered((manifest, seal, *written)), _built(path))


def is_built(path: Path) -> bool:
    """Whether a build has left anything in an entry."""
    return any(os.path.lexists(path / name) for name in (LIB, LOG, BUILD, BUILD_SEAL))


def _built(path: Path) -> tuple[File, ...]:
    if not is_built(path):
        return ()
    seal, build = _hashed(path, BUILD_SEAL), _hashed(path, BUILD)
    if _text(path, BUILD_SEAL) != f"{build.sha256}  {BUILD}\n":
        raise tampered(path, f"{BUILD} or {BUILD_SEAL}", "the one is not the sha256 of the other")
    files = _listed(path, BUILD, _BUILT_NAME)
    there = [f"{LIB}/{name}" for name in sorted(os.listdir(path / LIB))] if (path / LIB).is_dir() else []
    for name in (*there, *([LOG] if os.path.lexists(path / LOG) else [])):
        if all(f.name != name for f in files):
            raise tampered(path, name, f"{BUILD} does not list it")
    return _ordered((seal, build, *files))


def _listed(path: Path, listing: str, names: re.Pattern[str]) -> tuple[File, ...]:
    """The files that a listing names, each as it says. Raises C001."""
    try:
        said = {str(name): (entry["size"], entry["sha256"]) for name, entry in json.loads(_text(path, listing))["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise tampered(path, listing, "it does not list files as this version does") from problem
    files = []
    for name in sorted(said):
        if not names.fullmatch(name):
            raise tampered(path, listing, f"{json.dumps(name)} is no name of a file that it could list")
        file = _hashed(path, name)
        if (file.size, file.sha256) != said[name]:
            raise tampered(path, name, f"its size or sha256 is not the one in {listing}")
        files.append(file)
    return tuple(files)


def _hashed(path: Path, name: str) -> File:
    """Size and sha256 of a file, read in pieces. Raises C001 where there is none."""
    whole, size = hashlib.sha256(), 0
    try:
        if name.startswith(f"{LIB}/") and not stat.S_ISDIR(os.lstat(path / LIB).st_mode):
            raise tampered(path, LIB, "it is no folder")
        with open(os.open(path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise tampered(path, name, "it is no file")
            while piece := stream.read(CHUNK):
                whole.update(piece)
                size += len(piece)
    except OSError as error:
        raise tampered(path, name, error.strerror or str(error)) from error
    return File(name, size, whole.hexdigest())


def _text(path: Path, name: str) -> str:
    return (path / name).read_bytes().decode("utf-8", errors="surrogateescape")


def _ordered(files: tuple[File, ...]) -> tuple[File, ...]:
    return tuple(sorted(files, key=lambda f: f.name))


def tampered(path: Path, name: str, reason: str) -> TidecError:
    return TidecError(Diagnostic("C001", f"{name} of the kept bundle {path} is not what was written there", reason=reason,
                                 help=f"find out who changed it, then remove the entry (rm -r {path}) and compile or import it again; compile --force replaces it"))
