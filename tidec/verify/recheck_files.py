"""The files of a bundle as the checker reads them: each once, each held against the digest that lists it, none missing and none more.

    manifest.sha256 -> manifest.json -> ask.json, <stem>.plan.json .cert.json .hpp, and the other emitted sources
    build.sha256    -> build.json    -> build.log, lib/*.so                                 (where a build ended)

A build is published with build.sha256 last: what stands there without it was never finished, and nothing of it is read or loaded.
"""
from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from tidec.errors import Diagnostic, TidecError
from tidec.verify.recheck_theorems import canonical
from tidec.verify.recheck_words import tampered

MANIFEST, SEAL, BUILD, BUILD_SEAL, LOG, LIB = "manifest.json", "manifest.sha256", "build.json", "build.sha256", "build.log", "lib"
SCHEMA = "tidec.bundle/1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BUILT = re.compile(r"build\.log|lib/[A-Za-z0-9][A-Za-z0-9._-]*\.so")
_DIGEST = re.compile(r"[0-9a-f]{64}")


def _no_float(text: str) -> object:
    raise ValueError(f"{text:.20} is no integer")


_DECODER = json.JSONDecoder(parse_float=_no_float, parse_constant=_no_float)


@dataclass(frozen=True, slots=True)
class Files:
    """What the manifest lists, by name, and the manifest itself. num_built: files that a build added.  is_unfinished: a build never ended."""

    manifest: dict
    listed: dict[str, bytes]
    num_built: int
    is_unfinished: bool


def read_files(path: Path) -> Files:
    """Every file of the bundle. Raises P001 where there is no bundle; C001 naming the file that is not what its digest says."""
    if not (path / MANIFEST).is_file():
        raise TidecError(Diagnostic("P001", f"{path} is no bundle", reason=f"it has no {MANIFEST}" if path.exists() else "there is no such folder",
                                    help="give the folder that tidec compile printed"))
    manifest = _sealed(path, MANIFEST, SEAL)
    if manifest.get("schema") != SCHEMA:
        raise tampered(MANIFEST, f"its schema is {str(manifest.get('schema')):.40}, and this version reads {SCHEMA}")
    listed = _listed(path, MANIFEST, manifest, _NAME)
    there = sorted(os.listdir(path))
    for name in there:
        if name not in listed and name not in (MANIFEST, SEAL, BUILD, BUILD_SEAL, LOG, LIB):
            raise tampered(name, f"{MANIFEST} does not list it")
    is_unfinished = BUILD_SEAL not in there and any(name in there for name in (BUILD, LOG, LIB))
    return Files(manifest, listed, _check_build(path, there), is_unfinished)


def parsed(name: str, data: bytes) -> dict:
    """A file that is one object of canonical JSON. Raises C001."""
    value = loaded(name, data)
    if canonical(value).encode() != data:
        raise tampered(name, "it is not spelt canonically")
    return value


def loaded(name: str, data: bytes) -> dict:
    """A file that is one object of JSON without floats. Raises C001."""
    try:
        text = data.decode("ascii")
    except ValueError as problem:
        raise tampered(name, f"it is not JSON: {str(problem):.80}") from None
    return spelt(name, text)


def spelt(name: str, text: str) -> dict:
    """One object of JSON without floats, from a part of a file. Raises C001."""
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError) as problem:
        raise tampered(name, f"it is not JSON: {str(problem):.80}") from None
    if not isinstance(value, dict):
        raise tampered(name, "it is no object")
    return value


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def is_digest(value: object) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _check_build(path: Path, there: list[str]) -> int:
    if BUILD_SEAL not in there:
        return 0
    listed = _listed(path, BUILD, _sealed(path, BUILD, BUILD_SEAL), _BUILT)
    found = [LOG] if LOG in there else []
    if LIB in there:
        if not stat.S_ISDIR(os.lstat(path / LIB).st_mode):
            raise tampered(LIB, "it is no folder")
        found += [f"{LIB}/{name}" for name in sorted(os.listdir(path / LIB))]
    for name in found:
        if name not in listed:
            raise tampered(name, f"{BUILD} does not list it")
    return len(listed)


def _sealed(path: Path, name: str, seal: str) -> dict:
    """A listing whose own digest stands in a file that `sha256sum -c` reads."""
    data = _bytes(path, name)
    if _bytes(path, seal) != f"{sha256(data)}  {name}\n".encode():
        raise tampered(name, f"its sha256 is not the one in {seal}")
    return parsed(name, data)


def _listed(path: Path, listing: str, content: dict, names: re.Pattern[str]) -> dict[str, bytes]:
    files = content.get("files")
    if not isinstance(files, dict):
        raise tampered(listing, "it lists no files")
    result = {}
    for name, said in files.items():
        if not names.fullmatch(name) or name in (MANIFEST, SEAL, BUILD, BUILD_SEAL):
            raise tampered(listing, f"{json.dumps(name):.80} is no name of a file that it could list")
        data = _bytes(path, name)
        if said != {"sha256": sha256(data), "size": len(data)} or type(said["size"]) is not int:
            raise tampered(name, f"its size or sha256 is not the one in {listing}")
        result[name] = data
    return result


def _bytes(path: Path, name: str) -> bytes:
    """A plain file's bytes; a link, a pipe or a folder is none."""
    try:
        with open(os.open(path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise tampered(name, "it is no file")
            return stream.read()
    except OSError as problem:
        raise tampered(name, problem.strerror or str(problem)) from problem
