"""Where a builder works: a folder of its own in `<cache>/.work`, which disappears with it, whatever ends it.

    <cache>/.work/<host>-<name>.lock      held while its builder lives
    <cache>/.work/<host>-<name>/          what it builds, aside; renamed out of here when it is whole

The lock file is made before the folder and removed after it, so a folder whose lock nobody holds belongs to no one: the next
builder sweeps it. A host trusts locks about its own builders only; what another host left goes when it is a day old and unlocked.
"""
from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidec.cache.folder import fresh_name, private_folder
from tidec.cache.locks import State, make, own
from tidec.errors import Diagnostic, TidecError

WORK = ".work"
FOREIGN_AGE_S = 86_400.0
_TRIES = 100
_NAME = re.compile(r"([0-9a-f]{8})-[0-9a-f]{16}")


@contextmanager
def workspace(cache: Path) -> Iterator[Path]:
    """An empty folder on the cache's file system, for this `with` block; leftovers of dead builders are swept first.

    Raises E003 and C003 as `private_folder` does, and OSError where nothing can be made in it.
    """
    private_folder(cache)
    work = private_folder(cache / WORK)
    sweep(cache)
    for _ in range(_TRIES):
        folder = work / f"{_host()}-{fresh_name()}"
        guard = _guard(folder)
        with make(guard) as lock:
            if lock.state in (State.BUSY, State.ABSENT):
                continue
            try:
                folder.mkdir(mode=0o700)
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                guard.unlink(missing_ok=True)
            return
    raise TidecError(Diagnostic("E003", f"{work} gives no folder to build in", reason=f"{_TRIES} names were taken away at once by other processes",
                                help="run it again; if it stays so, set TIDEC_CACHE_DIR to a folder of your own"))


def sweep(cache: Path) -> int:
    """Remove what dead builders left. Returns bytes; what is locked, foreign and fresh, or cannot be removed stays for another time."""
    return sum(_swept(folder) for folder in leftovers(cache))


def leftovers(cache: Path) -> tuple[Path, ...]:
    """The folders of builders, living or dead, in order of name."""
    try:
        names = {name.removesuffix(".lock") for name in os.listdir(cache / WORK)}
    except OSError:
        return ()
    return tuple(cache / WORK / name for name in sorted(names) if _NAME.fullmatch(name))


def is_dead(folder: Path) -> bool:
    """Whether the builder of a folder of `leftovers` is gone. Nothing is removed."""
    with own(_guard(folder)) as lock:
        return lock.state is State.ABSENT and folder.is_dir() or lock.state is State.HELD and _may_judge(folder)


def _swept(folder: Path) -> int:
    guard = _guard(folder)
    try:
        with own(guard) as lock:
            if lock.state is State.HELD and _may_judge(folder):
                return _removed(folder, guard)
        # A folder without a lock file: whoever removed it died between the two. Nobody can own the folder, but another may be at it.
        if lock.state is State.ABSENT and folder.is_dir():
            with make(guard) as lock:
                if lock.state is State.HELD:
                    return _removed(folder, guard)
    except OSError:
        pass
    return 0


def _removed(folder: Path, guard: Path) -> int:
    count = size_of(folder)
    shutil.rmtree(folder, ignore_errors=True)
    # The lock file goes last, so that what could not be removed is tried again.
    if not os.path.lexists(folder):
        guard.unlink(missing_ok=True)
    return count


def _may_judge(folder: Path) -> bool:
    if folder.name.startswith(_host()):
        return True
    try:
        return time.time() - _guard(folder).stat().st_mtime > FOREIGN_AGE_S
    except OSError:
        return False


def size_of(folder: Path) -> int:
    """Bytes of all files in a folder, or of a file; 0 where it is gone."""
    if not folder.is_dir() or folder.is_symlink():
        return folder.lstat().st_size if os.path.lexists(folder) else 0
    return sum(os.lstat(os.path.join(root, name)).st_size for root, _, names in os.walk(folder) for name in names)


def _guard(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _host() -> str:
    return hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]
