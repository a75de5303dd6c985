"""Locks that die with their process: flock on a file, which the kernel releases; nothing here ever waits.

A lock is shared by readers of an entry (on its manifest.json), and held alone by a builder (on the file beside its folder) and by
whoever removes something.

NOTE: on some network file systems flock is missing, or known to one host only. What cannot be locked is never removed, and what
another host left is removed only when it is old (see workspace.py).
"""
from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)


class State(Enum):
    """What came of asking for a lock."""

    HELD = "held"
    BUSY = "busy"                   # another process holds it
    ABSENT = "absent"               # there is no such file, or it was replaced or removed meanwhile
    UNLOCKABLE = "unlockable"       # the file may not be opened so, or its file system has no locks


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock, until the `with` block or the process ends. descriptor: -1 where nothing is open."""

    state: State
    descriptor: int = -1

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def share(file: Path) -> Lock:
    """The lock of a reader, who keeps others from removing what the file belongs to."""
    return _taken(file, os.O_RDONLY, fcntl.LOCK_SH)


def own(file: Path) -> Lock:
    """The lock of one who removes, alone."""
    return _taken(file, os.O_RDWR, fcntl.LOCK_EX)


def make(file: Path) -> Lock:
    """The lock of a builder, on a new file. ABSENT or BUSY: somebody took the new file for a leftover, or it was there already; use another name.

    Raises OSError where the file cannot be made.
    """
    descriptor = -1
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return Lock(State.BUSY)
    return _locked(file, descriptor, fcntl.LOCK_EX)


def _taken(file: Path, mode: int, kind: int) -> Lock:
    try:
        descriptor = os.open(file, mode | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return Lock(State.ABSENT)
    except OSError:
        return Lock(State.UNLOCKABLE)
    return _locked(file, descriptor, kind)


def _locked(file: Path, descriptor: int, kind: int) -> Lock:
    state = State.HELD
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        # Between open and lock the file may have been removed, by one who held the lock before.
        if not os.path.samestat(os.fstat(descriptor), os.lstat(file)):
            state = State.ABSENT
    except BlockingIOError:
        state = State.BUSY
    except FileNotFoundError:
        state = State.ABSENT
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
        state = State.UNLOCKABLE
    if state is not State.HELD:
        os.close(descriptor)
        return Lock(state)
    return Lock(state, descriptor)
