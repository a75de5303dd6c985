"""Small bundles for the store, made by hand; a disk that is full; a process of its own."""
from __future__ import annotations

import hashlib
import json
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidec.errors import Diagnostic, TidecError


@dataclass(frozen=True)
class Made:
    """What the store needs of a bundle."""

    path: Path
    digest: str


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def listing(files: Mapping[str, bytes], **more: object) -> bytes:
    said = {name: {"sha256": sha256(data), "size": len(data)} for name, data in files.items()}
    return json.dumps({**more, "files": said}, sort_keys=True, separators=(",", ":")).encode()


def write_by_hand(folder: Path, files: Mapping[str, bytes], lib: bytes) -> Made:
    """A bundle with these files beside its manifest, and with `lib` a build of one library."""
    folder.mkdir()
    manifest = listing(files)
    built: dict[str, bytes] = {}
    if lib:
        (folder / "lib").mkdir()
        built = {"lib/host-x86_64.so": lib, "build.log": b"c++ -shared\n"}
        build = listing(built)
        built |= {"build.json": build, "build.sha256": f"{sha256(build)}  build.json\n".encode()}
    seal = f"{sha256(manifest)}  manifest.json\n".encode()
    for name, data in {**files, "manifest.json": manifest, "manifest.sha256": seal, **built}.items():
        (folder / name).write_bytes(data)
    return Made(folder, sha256(manifest))


@pytest.fixture
def by_hand() -> Callable[..., Callable[[Path], Made]]:
    """`by_hand(text, lib=b"")` is what `keep_bundle` calls: it writes a bundle of two files that differs with every text."""

    def make(text: str = "x", *, lib: bytes = b"", more: Mapping[str, bytes] = {}) -> Callable[[Path], Made]:
        return lambda folder: write_by_hand(folder, {"ask.json": text.encode(), "block.ag.hpp": b"// " + text.encode() * 3, **more}, lib)

    return make


@pytest.fixture
def refusal() -> Callable[..., Diagnostic]:
    """`refusal(call, *args)` is the only diagnostic that the call stops with."""

    def refused(call: Callable[..., object], *args: object, **rest: object) -> Diagnostic:
        with pytest.raises(TidecError) as caught:
            call(*args, **rest)
        (diagnostic,) = caught.value.diagnostics
        assert diagnostic.help and str(diagnostic)
        return diagnostic

    return refused


@pytest.fixture
def full_disk() -> Callable[[], AbstractContextManager[None]]:
    """`with full_disk():` no file of this process can grow past 4 bytes. Keep it short: a test's own output may go to a file."""

    @contextmanager
    def full() -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return full


@pytest.fixture
def forked() -> Callable[[Callable[[], object]], int]:
    """`forked(call)` runs the call in a process of its own, which ends without a word, and gives the status that it ended with, as waitpid does."""

    def run(call: Callable[[], object]) -> int:
        child = os.fork()
        if child == 0:
            code = 99
            try:
                call()
                code = 0
            finally:
                os._exit(code)
        return os.waitpid(child, 0)[1]

    return run
