"""How files and folders are put in place: written aside, synced, then renamed; whole or not at all."""
from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from tidec.errors import Diagnostic, TidecError

ELSEWHERE = "set TIDEC_CACHE_DIR to a folder of your own"


def private_folder(path: Path) -> Path:
    """The folder at that path, made with mode 0700 where it is missing.

    Raises E003 where it cannot be made; C003 where it is a link, belongs to another user or can be written by others.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(path):
            path.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise unwritable(path, error) from error
    if stat.S_ISLNK(found.st_mode):
        raise _untrusted(path, "it is a symbolic link", ELSEWHERE)
    if not stat.S_ISDIR(found.st_mode):
        raise TidecError(Diagnostic("E003", f"the cache folder {path} is no folder", help=ELSEWHERE))
    if found.st_uid != os.geteuid():
        raise _untrusted(path, f"it belongs to user {found.st_uid}, not to you ({os.geteuid()})", ELSEWHERE)
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _untrusted(path, f"others can write in it (mode {stat.S_IMODE(found.st_mode):04o})", f"run chmod 700 {path}, after a look at what lies in it")
    return path


def write_aside(file: Path, data: bytes) -> None:
    """Write a whole file or nothing: aside, synced, then renamed into place. Raises OSError."""
    aside = file.with_name(f".new-{fresh_name()}")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, file)
    finally:
        aside.unlink(missing_ok=True)
    _sync_folder(file.parent)


def swap(aside: Path, place: Path) -> None:
    """Rename a folder into place; what stood there is moved away first and deleted after."""
    before = place.with_name(f".old-{fresh_name()}")
    if os.path.lexists(place):
        os.rename(place, before)
    try:
        os.rename(aside, place)
    except OSError:
        # Another process may have put its own bundle there: the same digest is the same bundle.
        if not (place.is_dir() and is_same_tree(aside, place)):
            if os.path.lexists(before) and not os.path.lexists(place):
                os.rename(before, place)
            raise
    _sync_folder(place.parent)
    if before.is_dir() and not before.is_symlink():
        shutil.rmtree(before, ignore_errors=True)
    else:
        before.unlink(missing_ok=True)


def is_same_tree(one: Path, other: Path) -> bool:
    """Whether two folders hold the same files with the same bytes; links are never the same."""
    if other.is_symlink() or not other.is_dir():
        return False
    names = [sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*")) for folder in (one, other)]
    if names[0] != names[1] or any(p.is_symlink() for p in other.rglob("*")):
        return False
    return all((other / n).is_file() and (one / n).read_bytes() == (other / n).read_bytes() for n in names[0] if (one / n).is_file())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fresh_name() -> str:
    return os.urandom(8).hex()


def unwritable(path: Path, error: OSError, *, help: str = ELSEWHERE) -> TidecError:
    return TidecError(Diagnostic("E003", f"{path} cannot be written", reason=error.strerror or str(error), help=help))


def _untrusted(path: Path, reason: str, help: str) -> TidecError:
    return TidecError(Diagnostic("C003", f"the cache folder {path} is not trusted", reason=reason, help=help))
