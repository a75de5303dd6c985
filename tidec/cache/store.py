"""Bundles that are kept by digest, each built aside and renamed into place, whole or not at all.

    <cache>/<bundle digest>/         one bundle (entry.py)
    <cache>/proofs/                  kept proofs (proofs.py)
    <cache>/.work/                   where builders work (workspace.py)

The folder is the user's own (mode 0700). A bundle that is not what was written there is an error, since somebody changed it. Layers
are searched after the own folder, checked as strictly, and never written.
"""
from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from tidec.cache.entry import Entry, check_entry, digest_of, is_built, tampered
from tidec.cache.folder import ELSEWHERE, check_closed, check_runnable, fresh_name, sync, sync_tree, unwritable
from tidec.cache.key import Cache
from tidec.cache.locks import State, own, share
from tidec.cache.workspace import workspace
from tidec.emit.place import MANIFEST
from tidec.errors import TidecError

if TYPE_CHECKING:
    from tidec.emit.bundle import Bundle

# How long another's entry may stay invisible after a rename onto it failed: network file systems remember that a name was absent.
VISIBLE_S, _POLL_S = 10.0, 0.05
_STANDS_THERE = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
# Of renameat2: both paths count from the working folder; exchange them.
_HERE, _EXCHANGE = -100, 2


def keep_bundle(cache: Cache, write: Callable[[Path], Bundle], *, is_forced: bool = False) -> Bundle:
    """Have `write` write a bundle into a new folder, then keep it as `<cache>/<bundle digest>/`.

    One that is there already, or in a layer, is checked and used. is_forced: one that is there and was changed is replaced.
    Guaranteed: what `write` raises leaves nothing, and so does a process that is killed, as soon as the next one comes.
    Raises C001 where the kept bundle was changed, C003 where the cache is not the user's own, E003 where it cannot be written, E005.
    """
    help = f"give a folder with -o DIR, or {ELSEWHERE}"
    try:
        with workspace(cache.folder) as work:
            bundle = write(work / "bundle")
            if is_built(work / "bundle"):
                check_runnable(cache.folder)
            return replace(bundle, path=settle(cache, work / "bundle", bundle.digest, is_forced=is_forced))
    except OSError as error:
        raise unwritable(cache.folder, error, help=help) from error
    except TidecError as error:
        if error.diagnostics[0].code == "E003" and isinstance(error.__cause__, OSError):
            raise unwritable(cache.folder, error.__cause__, help=help) from error
        raise


@contextmanager
def reading(place: Path) -> Iterator[Entry | None]:
    """An entry, checked, which nobody removes or replaces in this `with` block; `None` = there is none.

    One that another is about to remove or to replace is waited for, VISIBLE_S at most.  Raises C001 where it was changed.
    """
    until = monotonic() + VISIBLE_S
    while True:
        with _opened(place) as descriptor:
            if descriptor < 0:
                yield None
                return
            with share(place / MANIFEST) as lock:
                # No lock and the folder that was opened: its manifest is missing, or there are no locks here.
                if lock.state is State.HELD or lock.state is not State.BUSY and _is_there(place, descriptor):
                    yield check_entry(place, digest_of(place))
                    return
        if monotonic() >= until:
            yield None
            return
        sleep(_POLL_S)


@contextmanager
def _opened(place: Path) -> Iterator[int]:
    """A descriptor of an entry's folder, -1 where there is none. Raises C001 where something else has its name."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield -1
        return
    except OSError as error:
        raise tampered(place, place.name, error.strerror or str(error)) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def find_entry(folder: Path, digest: str) -> Entry | None:
    """The bundle of that digest in a cache folder or a layer, checked; `None` = there is none. Raises C001 where it was changed."""
    with reading(folder / digest) as entry:
        return entry


def find_in_layers(cache: Cache, digest: str) -> Entry | None:
    """As `find_entry`, in the layers. Raises C003 too, where others than its owner can write an entry."""
    for layer in cache.layers:
        if os.path.lexists(layer / digest):
            check_closed(layer / digest)
        found = find_entry(layer, digest)
        if found is not None:
            return found
    return None


def settle(cache: Cache, aside: Path, digest: str, *, is_forced: bool = False) -> Path:
    """Give a whole bundle its place under its digest, or find the one that stands there; returns where it is.

    aside: a folder of the caller's workspace; it is renamed away, or left there for the workspace to remove.
    An entry without libraries gives way to one with them, unless somebody is reading it.
    NOTE: where a rename says that the place is taken and looking at it says that it is free, the name is looked up again until
    VISIBLE_S are over; then the bundle is kept beside it as a spare, which gc removes.
    Raises C001 where what stands there was changed, and OSError.
    """
    place = cache.folder / digest
    until = monotonic() + VISIBLE_S
    is_synced = False
    while True:
        found = _found(cache, digest, is_forced=is_forced)
        if found is not None and (found.built or not is_built(aside)):
            if found.path == place:
                with suppress(OSError):
                    os.utime(place)         # gc counts from the last use
            return found.path
        if not is_synced:
            sync_tree(aside)
            is_synced = True
        if found is not None and found.path == place:
            with own(place / MANIFEST) as lock:
                if lock.state in (State.BUSY, State.UNLOCKABLE) or lock.state is State.HELD and not is_built(place) and give_way(place, aside):
                    return place
        elif publish(aside, place):
            return place
        if is_forced and found is None and os.path.lexists(place):
            os.rename(place, aside.with_name(f"changed-{fresh_name()}"))
        elif monotonic() >= until:
            break
        else:
            os.listdir(cache.folder)        # makes a network file system look again
            sleep(_POLL_S)
    return keep_aside(aside, place)


def keep_aside(aside: Path, place: Path) -> Path:
    """Keep a bundle beside the place that it cannot have; gc removes it. Raises OSError."""
    spare = place.with_name(f"{place.name}.{fresh_name()}")
    os.rename(aside, spare)
    sync(place.parent)
    return spare


def _found(cache: Cache, digest: str, *, is_forced: bool) -> Entry | None:
    try:
        return find_entry(cache.folder, digest) or find_in_layers(cache, digest)
    except TidecError:
        if is_forced:
            return None
        raise


def publish(aside: Path, place: Path) -> bool:
    """Rename a folder, which is on the disk, to its place; False where something stands there. Raises OSError."""
    try:
        os.rename(aside, place)
    except OSError as error:
        # NOTE: a network file system may do a rename, lose the answer, and say to the repeated question that there is no such file.
        if error.errno in _STANDS_THERE or isinstance(error, FileNotFoundError) and not os.path.lexists(aside):
            return False
        raise
    sync(place.parent)
    return True


def give_way(place: Path, aside: Path) -> bool:
    """Put a whole folder in the place of an entry whose lock (`locks.own`) the caller holds; False where another came between.

    In one step, so that the entry is always there; a file system that cannot exchange two folders has it absent for a moment.
    Raises OSError.
    """
    if not _exchanged(aside, place):
        os.rename(place, aside.with_name(f"replaced-{fresh_name()}"))
        return publish(aside, place)
    sync(place.parent)
    return True


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders by name; False where the system or the file system cannot."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    if library.renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), os.fspath(other))


def _is_there(place: Path, descriptor: int) -> bool:
    """Whether the open folder still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(place))
    except FileNotFoundError:
        return False
