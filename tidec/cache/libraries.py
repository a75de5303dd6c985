"""How a kept bundle comes to have a library: a copy of it is built aside and takes its place, so that nobody sees half a build."""
from __future__ import annotations

import shutil
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from time import monotonic, sleep

from tidec.cache.entry import BUILD_SEAL, NAME, check_entry, digest_of
from tidec.cache.folder import check_runnable, fresh_name, sync_tree, unwritable
from tidec.cache.key import Cache
from tidec.cache.locks import State, own
from tidec.cache.store import find_entry, find_in_layers, give_way, keep_aside, publish, reading
from tidec.cache.workspace import workspace
from tidec.emit.place import MANIFEST
from tidec.errors import Diagnostic, TidecError

# How long readers of the entry are waited for.
READERS_S, _POLL_S = 10.0, 0.05
_TRIES = 5


class _Swap(Enum):
    """What came of putting a copy in the place of an entry."""

    DONE = "done"
    CHANGED = "changed"         # it has another build by now
    READ = "read"               # its readers do not leave, or it cannot be locked


def build_kept(cache: Cache, path: Path, build: Callable[[Path], bool]) -> Path:
    """Have `build` add libraries to a bundle; gives the folder that has them.

    path: a bundle; one of the cache or of its layers is copied aside first, and the copy takes its place, or comes into the own folder where it
    is a layer's; any other is built where it stands.
    build: adds to the folder that it is given, and says whether it added anything.
    Guaranteed: what `build` raises, or a kill, leaves the entry as it was. What another process built meanwhile is not lost.
    Raises C001, C003, C007, E003, E005, and what `build` raises.
    """
    if path.parent not in (cache.folder, *cache.layers) or not NAME.fullmatch(path.name):
        build(path)
        return path
    digest = digest_of(path)
    try:
        with workspace(cache.folder) as work:
            for _ in range(_TRIES):
                copy = work / fresh_name()
                place = _copied(cache, digest, copy)
                seal = _seal(copy) if place.parent == cache.folder else b""
                if not build(copy):
                    return place
                check_runnable(cache.folder)
                check_entry(copy, digest)
                sync_tree(copy)
                came_of_it = _swap(cache.folder / digest, copy, seal)
                if came_of_it is _Swap.DONE:
                    return cache.folder / digest
                if came_of_it is _Swap.READ:
                    break
            # Others read or build it without an end: what was built is kept beside the entry.
            return keep_aside(copy, cache.folder / digest)
    except OSError as error:
        raise unwritable(cache.folder, error) from error


def _copied(cache: Cache, digest: str, copy: Path) -> Path:
    """Copy an entry, own or of a layer, and give the folder that it was copied from."""
    until = monotonic() + READERS_S
    while True:
        found = find_entry(cache.folder, digest) or find_in_layers(cache, digest)
        place = cache.folder / digest if found is None else found.path
        with reading(place) as entry:
            if entry is not None:
                # By name and without modes: the folders of a layer may be read-only.
                for file in (*entry.written, *entry.built):
                    (copy / file.name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(place / file.name, copy / file.name, follow_symlinks=False)
                return place
        # Where two folders cannot be exchanged in one step, it is absent for a moment.
        if monotonic() >= until:
            raise TidecError(Diagnostic("C007", f"the bundle {digest} was removed meanwhile", help="compile it again"))
        sleep(_POLL_S)


def _swap(place: Path, copy: Path, seal: bytes) -> _Swap:
    """Put the copy in the place of what it is a copy of. seal: build.sha256 of what was copied, b"" where it had none."""
    until = monotonic() + READERS_S
    while True:
        with own(place / MANIFEST) as lock:
            if lock.state is State.HELD:
                if _seal(place) != seal:
                    return _Swap.CHANGED
                return _Swap.DONE if give_way(place, copy) else _Swap.CHANGED
            if lock.state is State.ABSENT:
                return _Swap.DONE if publish(copy, place) else _Swap.CHANGED
        if lock.state is State.UNLOCKABLE or monotonic() >= until:
            return _Swap.READ
        sleep(_POLL_S)


def _seal(entry: Path) -> bytes:
    try:
        return (entry / BUILD_SEAL).read_bytes()
    except FileNotFoundError:
        return b""
