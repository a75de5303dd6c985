"""Where a library is built: a folder beside its bundle, which disappears with its builder, or with the next one if the builder is killed.

    <folder of the bundle>/.build-<host>-<name>/      locked while its builder lives

A lock ends with its process, whatever ends that. A host trusts locks about its own builders only. Where there are no locks nothing is swept.
"""
from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from tidec.errors import Diagnostic, TidecError

PREFIX = ".build-"
# How long another process may publish into the same bundle: a few renames and fsyncs.
OTHERS_S, _POLL_S = 30.0, 0.02
_TRIES = 20


@contextmanager
def beside(bundle: Path) -> Iterator[Path]:
    """An empty folder on the bundle's file system for this `with` block; what dead builders left beside the bundle is removed first. Raises OSError, E003."""
    _sweep(bundle.parent)
    for _ in range(_TRIES):
        folder = bundle.parent / f"{_own_prefix()}{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
        lock = _open(folder)
        # Between the two lines somebody may have taken the folder for a dead builder's.
        if lock is not None and _lock(lock) is not False and folder.is_dir():
            break
        if lock is not None:
            os.close(lock)
    else:
        raise TidecError(Diagnostic("E003", f"{bundle.parent} gives no folder to build in", reason=f"{_TRIES} of them were taken away at once", help="run it again"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def alone(bundle: Path) -> Iterator[None]:
    """For this `with` block nobody else publishes into the bundle. Raises E003 where another process does not end; OSError where it is no folder."""
    until = monotonic() + OTHERS_S
    lock = os.open(bundle, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while _lock(lock) is False:
            if monotonic() >= until:
                raise TidecError(Diagnostic("E003", f"another process publishes into {bundle}, and does not end", reason=f"it was waited for {OTHERS_S:.0f} s",
                                            help="end that process, or copy the bundle to a folder of your own"))
            sleep(_POLL_S)
        yield
    finally:
        os.close(lock)


def _sweep(parent: Path) -> None:
    for folder in sorted(parent.glob(f"{_own_prefix()}*")):
        lock = _open(folder)
        if lock is not None:
            try:
                if _lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def _open(folder: Path) -> int | None:
    """A descriptor of a folder; `None` where it is gone, or is something else."""
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None


def _lock(descriptor: int) -> bool | None:
    """Whether nobody else has it locked; `None` where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _own_prefix() -> str:
    return f"{PREFIX}{hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]}-"
