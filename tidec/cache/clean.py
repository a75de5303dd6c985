"""What leaves the cache: what was not used for long, or is too much; never what somebody is reading.

An entry's age counts from its last use: the time of its folder, or of a proof's file. Removing is renaming into a workspace, so an
entry is there whole or not at all, whatever happens to the one who removes it.
"""
from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tidec.cache.entry import NAME, digest_of, entry_folders
from tidec.cache.folder import fresh_name, private_folder, unwritable
from tidec.cache.locks import State, own
from tidec.cache.proofs import PROOFS
from tidec.cache.workspace import is_dead, leftovers, size_of, sweep, workspace
from tidec.emit.place import MANIFEST

_PROOF_NAME_LENGTH = 64


class Kind(Enum):
    """What something of the cache is."""

    BUNDLE = "bundle"
    SPARE = "spare"             # the bundle again, of a process that could not see the first one
    PROOF = "proof"
    LEFTOVER = "leftover"       # of a builder that died


@dataclass(frozen=True, slots=True)
class Item:
    """Something that could be removed. used: when it was used last, seconds since 1970."""

    kind: Kind
    path: Path
    bytes: int
    used: float


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What was removed, or in a dry run would be; what was not, because somebody reads it; and the bytes of all that stays."""

    removed: tuple[Item, ...]
    in_use: tuple[Item, ...]
    kept_bytes: int

    @property
    def freed_bytes(self) -> int:
        return sum(i.bytes for i in self.removed)


def clean(folder: Path, *, max_bytes: int | None, older_than_s: float | None, now: float, is_dry: bool = False) -> Cleaned:
    """Remove what was not used for older_than_s seconds, then the least recently used until at most max_bytes stay; `None` = no limit.

    Leftovers of dead builders and spares go in any case.  now: seconds since 1970.  is_dry: nothing is removed.
    Raises C003 where the cache is not one's own, E003 where it cannot be written.
    """
    if not os.path.lexists(folder):
        return Cleaned((), (), 0)
    private_folder(folder)
    items = sorted(contents(folder), key=lambda i: (i.used, i.path.name))
    dead = [Item(Kind.LEFTOVER, path, size_of(path), 0.0) for path in leftovers(folder) if is_dead(path)]
    left = sum(i.bytes for i in items)
    removed, in_use = list(dead), []
    try:
        if not is_dry:
            sweep(folder)
        for item in items:
            is_old = older_than_s is not None and now - item.used > older_than_s
            if not (item.kind is Kind.SPARE or is_old or max_bytes is not None and left > max_bytes):
                continue
            try:
                is_out = _is_free(item) if is_dry else _removed(folder, item)
            except FileNotFoundError:       # another removed it, and says so
                left -= item.bytes
                continue
            (removed if is_out else in_use).append(item)
            left -= item.bytes if is_out else 0
    except OSError as error:
        raise unwritable(folder, error) from error
    return Cleaned(tuple(removed), tuple(in_use), left)


def contents(folder: Path) -> tuple[Item, ...]:
    """The bundles and proofs of a cache folder or a layer, with sizes; nothing is read of them. What else lies there is not ours."""
    paths = [(_kind(path), path) for path in entry_folders(folder)]
    proofs = folder / PROOFS
    if proofs.is_dir():
        paths += [(Kind.PROOF, proofs / name) for name in sorted(os.listdir(proofs)) if len(name) == _PROOF_NAME_LENGTH and NAME.fullmatch(name)]
    found = []
    for kind, path in paths:
        with suppress(FileNotFoundError):       # removed meanwhile
            found.append(Item(kind, path, size_of(path), os.lstat(path).st_mtime))
    return tuple(found)


def _kind(path: Path) -> Kind:
    digest = digest_of(path)
    return Kind.SPARE if path.name != digest and os.path.lexists(path.with_name(digest)) else Kind.BUNDLE


def _is_free(item: Item) -> bool:
    if item.kind is Kind.PROOF:
        return True
    with own(item.path / MANIFEST) as lock:
        return lock.state in (State.HELD, State.ABSENT)


def _removed(folder: Path, item: Item) -> bool:
    """Take an item out; False where somebody reads it, or used it since it was listed."""
    if item.kind is Kind.PROOF:
        if os.lstat(item.path).st_mtime != item.used:
            return False
        item.path.unlink()
        return True
    with own(item.path / MANIFEST) as lock:
        # No manifest: an entry that somebody broke, which nobody can be reading.
        if lock.state not in (State.HELD, State.ABSENT) or os.lstat(item.path).st_mtime != item.used:
            return False
        with workspace(folder) as work:
            os.rename(item.path, work / fresh_name())
    return True
