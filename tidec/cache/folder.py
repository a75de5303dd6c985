"""Which folders are trusted and usable, what is said of the others, and how what is in them reaches the disk."""
from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from tidec.errors import Diagnostic, Level, TidecError

ELSEWHERE = "set TIDEC_CACHE_DIR to a folder of your own"
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


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
    if found.st_mode & _OTHERS_WRITE:
        raise _untrusted(path, f"others can write in it (mode {stat.S_IMODE(found.st_mode):04o})", f"run chmod 700 {path}, after a look at what lies in it")
    return path


def layer_folder(path: Path) -> Diagnostic | None:
    """Why the layer is left out, as a warning; `None` = it can be used.

    A layer may belong to anybody: who names it trusts its owner, but nobody else.
    Raises C003 where it is a link or can be written by others than its owner.
    """
    leave = "take it out of TIDEC_CACHE_PATH"
    try:
        found = os.lstat(path)
    except OSError as error:
        return _unusable(path, error.strerror or str(error))
    if stat.S_ISLNK(found.st_mode):
        raise _untrusted(path, "it is a symbolic link", f"name the folder that it leads to, or {leave}")
    if not stat.S_ISDIR(found.st_mode):
        return _unusable(path, "it is no folder")
    if found.st_mode & _OTHERS_WRITE:
        raise _untrusted(path, f"others than its owner can write in it (mode {stat.S_IMODE(found.st_mode):04o})", f"have its owner run chmod -R go-w {path}, or {leave}")
    if not os.access(path, os.R_OK | os.X_OK):
        return _unusable(path, f"you may not read it (mode {stat.S_IMODE(found.st_mode):04o})")
    return None


def check_closed(entry: Path) -> None:
    """Whether only its owner can write what lies in an entry of a layer. Raises C003 naming what others can write."""
    for root, folders, names in os.walk(entry):
        for path in (Path(root), *(Path(root) / name for name in names)):
            found = os.lstat(path)
            if not stat.S_ISLNK(found.st_mode) and found.st_mode & _OTHERS_WRITE:
                raise _untrusted(path, f"others than its owner can write it (mode {stat.S_IMODE(found.st_mode):04o})",
                                 "have its owner run chmod -R go-w on it, or take its layer out of TIDEC_CACHE_PATH")


def check_runnable(folder: Path) -> None:
    """Whether a library can be loaded from a folder. Raises E005 where its file system is mounted noexec."""
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise TidecError(Diagnostic("E005", f"libraries cannot be loaded from {folder}", reason="its file system is mounted noexec",
                                    help="set TIDEC_CACHE_DIR to a folder on a file system that runs programs"))


def sync_tree(folder: Path) -> None:
    """Have every file and folder of a tree reach the disk, the inner ones first. Raises OSError."""
    for root, _, names in os.walk(folder, topdown=False):
        for path in (*(os.path.join(root, name) for name in names), root):
            sync(path)


def sync(path: str | Path) -> None:
    """Have one file or folder reach the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fresh_name() -> str:
    return os.urandom(8).hex()


def unwritable(path: Path, error: OSError, *, help: str = ELSEWHERE) -> TidecError:
    """The message for a folder in which something could not be written: read-only, full, or another reason."""
    reason = error.strerror or str(error)
    if error.errno in _REFUSED:
        return TidecError(Diagnostic("E003", f"{path} cannot be written: it is read-only for you", reason=reason, help=help))
    if error.errno in _FULL:
        return TidecError(Diagnostic("E003", f"{path} cannot be written: its file system or your quota is full", reason=reason,
                                     help=f"make room (tidec cache gc --max-gib), or {help}"))
    return TidecError(Diagnostic("E003", f"{path} cannot be written", reason=reason, help=help))


def _untrusted(path: Path, reason: str, help: str) -> TidecError:
    return TidecError(Diagnostic("C003", f"the cache folder {path} is not trusted", reason=reason, help=help))


def _unusable(path: Path, reason: str) -> Diagnostic:
    return Diagnostic("C006", f"the cache layer {path} is left out", reason=reason, help="nothing, if that is meant; else correct TIDEC_CACHE_PATH", level=Level.WARNING)
