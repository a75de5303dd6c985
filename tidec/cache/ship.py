"""How bundles travel: one archive, the same bytes for the same bundles, of which nothing becomes visible before all of it is checked.

    0-tidec-archive.json       the schema and the digests of the bundles, canonical JSON
    <digest>/<file>            every file of every bundle, in order of name (tape.py has the outer form)

A name is a digest, and from it every byte follows: manifest.json is what has this sha256, and lists the rest (entry.py). Proofs do
not travel: they are trusted because they lie in one's own folder, and bundles are checked again where they arrive.
"""
from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tidec.cache.entry import CHUNK, Entry, File, check_entry, digest_of, tampered
from tidec.cache.folder import check_runnable, fresh_name, sync, unwritable
from tidec.cache.key import Cache
from tidec.cache.store import find_entry, find_in_layers, reading, settle
from tidec.cache.tape import END, Member, TapeError, members, write
from tidec.cache.workspace import workspace
from tidec.emit.manifest import canonical
from tidec.errors import Diagnostic, TidecError
from tidec.inputs.document import quoted

INDEX, SCHEMA = "0-tidec-archive.json", "tidec.archive/1"
_MAX_INDEX = 1 << 24
_ELSEWHERE = "give another file with -o FILE"


@dataclass(frozen=True, slots=True)
class Shipped:
    """An archive that was written. sha256: of the whole file."""

    file: Path
    bytes: int
    sha256: str
    digests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of an archive: where each of its bundles is, and whether it was new."""

    path: Path
    digest: str
    bytes: int
    is_new: bool


# ---- out

def export(places: Sequence[Path], out: Path, *, has_lib: bool = True, is_forced: bool = False) -> Shipped:
    """Write bundles into one file. places: their folders in a cache or layer.  has_lib: with what builds added.

    Each is checked first, and every byte is hashed again on its way. Guaranteed: equal bundles give equal bytes, wherever and whenever.
    Raises C001 where a bundle was changed, C002 where the file exists (unless forced), C007 where a bundle is gone, E003.
    """
    if os.path.lexists(out) and not is_forced:
        raise TidecError(Diagnostic("C002", f"{out} exists", help="add --force to replace it, or give another file with -o FILE"))
    if out.is_dir():
        raise TidecError(Diagnostic("C002", f"{out} is a folder", help="give a file with -o FILE"))
    bundles = dict(sorted({digest_of(place): place for place in places}.items()))
    aside = out.with_name(f".{out.name}.{fresh_name()}")
    whole = hashlib.sha256()
    try:
        try:
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb") as file:
                def put(data: bytes) -> None:
                    file.write(data)
                    whole.update(data)

                index = _index(tuple(bundles))
                write(put, INDEX, len(index), [index])
                for digest, place in bundles.items():
                    with reading(place) as entry:
                        if entry is None:
                            raise TidecError(Diagnostic("C007", f"the bundle {digest} was removed meanwhile", help="run it again: tidec cache ls"))
                        for part in sorted((*entry.written, *(entry.built if has_lib else ())), key=lambda f: f.name):
                            write(put, f"{digest}/{part.name}", part.size, _pieces(entry, part))
                put(END)
                file.flush()
                os.fsync(file.fileno())
                count = file.tell()
            os.replace(aside, out)
            sync(out.parent)
        finally:
            aside.unlink(missing_ok=True)
    except TapeError as error:
        raise TidecError(Diagnostic("C005", f"{error.name} cannot be put into an archive", reason=error.reason, help="compile the bundle again")) from error
    except OSError as error:
        raise unwritable(out, error, help=_ELSEWHERE) from error
    return Shipped(out, count, whole.hexdigest(), tuple(bundles))


def _index(digests: Sequence[str]) -> bytes:
    return canonical({"schema": SCHEMA, "bundles": list(digests)}).encode()


def _pieces(entry: Entry, part: File) -> Iterator[bytes]:
    whole, size = hashlib.sha256(), 0
    try:
        with open(os.open(entry.path / part.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
            while size <= part.size and (piece := stream.read(CHUNK)):
                whole.update(piece)
                size += len(piece)
                if size <= part.size:
                    yield piece
    except OSError as error:
        raise tampered(entry.path, part.name, error.strerror or str(error)) from error
    if (size, whole.hexdigest()) != (part.size, part.sha256):
        raise tampered(entry.path, part.name, "it changed while it was read")


# ---- in

def import_archive(cache: Cache, file: Path, *, recheck: Callable[[Path], object]) -> tuple[Imported, ...]:
    """Take every bundle of an archive into the own folder of the cache, those that are there already excepted.

    recheck: raises TidecError for a bundle that is whole and not right.
    Guaranteed: nothing of the archive is visible before all of it, and what already stands in its places, is checked; then its bundles
    become visible one by one, each whole.
    Raises P001 where there is no such file; C005 naming the file of the archive that is not what export wrote; C001 where a kept bundle was
    changed; C003, E003, E005, and what recheck raises.
    """
    with _opened(file) as stream:
        try:
            with workspace(cache.folder) as work:
                entries = _unpacked(file, members(stream), work)
                if any(e.built for e in entries):
                    check_runnable(cache.folder)
                for entry in entries:
                    _rechecked(file, entry, recheck)
                    find_entry(cache.folder, entry.digest)
                    find_in_layers(cache, entry.digest)
                return tuple(_settled(cache, entry) for entry in entries)
        except TapeError as error:
            raise _damaged(file, error.name, error.reason) from error
        except OSError as error:
            raise unwritable(cache.folder, error) from error


def _opened(file: Path) -> BinaryIO:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        is_file, reason = stat.S_ISREG(os.fstat(descriptor).st_mode), "it is no file"
        if is_file:
            return open(descriptor, "rb")
        os.close(descriptor)
    except OSError as error:
        reason = error.strerror or str(error)
    raise TidecError(Diagnostic("P001", f"there is no archive {file}", reason=reason, help="give a file that tidec cache export wrote"))


def _unpacked(file: Path, parts: Iterator[Member], work: Path) -> tuple[Entry, ...]:
    """Write the files of an archive into the workspace and check them. Raises TapeError, and C005."""
    first = next(parts, None)
    if first is None or first.name != INDEX or first.size > _MAX_INDEX:
        raise TapeError(first.name if first else "", f"an archive begins with {INDEX}")
    listed = _listed(b"".join(first.pieces()))
    seen: set[str] = set()
    for part in parts:
        digest, _, name = part.name.partition("/")
        if digest not in listed or not name:
            raise TapeError(part.name, f"{INDEX} lists no such bundle")
        if part.name.lower() in seen:
            raise TapeError(part.name, "another file's name differs from it in case only")
        seen.add(part.name.lower())
        _unpack(part, work / part.name)
    for digest in listed:
        if not (work / digest).is_dir():
            raise TapeError(INDEX, f"it lists {digest}, and the archive has no file of that bundle")
    return tuple(_checked(file, work / digest) for digest in listed)


def _listed(index: bytes) -> list[str]:
    try:
        said = json.loads(index)
        digests = sorted(set(map(str, said["bundles"])))
        schema = str(said["schema"])
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise TapeError(INDEX, "it is not the list that export writes") from problem
    if schema != SCHEMA:
        raise TapeError(INDEX, f"its schema is {schema!r}; this version reads {SCHEMA}")
    if _index(digests) != index or not all(len(d) == 64 and set(d) <= set("0123456789abcdef") for d in digests):
        raise TapeError(INDEX, "it is not the list that export writes")
    return digests


def _unpack(part: Member, place: Path) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise TapeError(part.name, "another file stands in its way") from error
    with open(descriptor, "wb") as out:
        for piece in part.pieces(CHUNK):
            out.write(piece)


def _checked(file: Path, folder: Path) -> Entry:
    try:
        return check_entry(folder, folder.name)
    except TidecError as error:
        d = error.diagnostics[0]
        raise _damaged(file, f"{folder.name}/{d.sentence.partition(' of the kept bundle ')[0]}", d.reason) from error


def _rechecked(file: Path, entry: Entry, recheck: Callable[[Path], object]) -> None:
    try:
        recheck(entry.path)
    except TidecError as error:
        d = error.diagnostics[0]
        raise TidecError(Diagnostic(d.code, f"{file}: {d.sentence}", spots=d.spots, reason=d.reason, example=d.example, see=d.see,
                                    help=d.help or "compile the bundle again where it came from"), *error.diagnostics[1:]) from error


def _settled(cache: Cache, entry: Entry) -> Imported:
    ours = os.stat(entry.path)
    path = settle(cache, entry.path, entry.digest)
    return Imported(path, entry.digest, entry.bytes, os.path.samestat(ours, os.stat(path)))


def _damaged(file: Path, name: str, reason: str) -> TidecError:
    shown = name if name.isprintable() else quoted(name[:60])
    return TidecError(Diagnostic("C005", f"{shown} of the archive {file} is not what export wrote" if name else f"{file} is no archive that export wrote", reason=reason,
                                 help="copy the archive again from where it was made, or export it again"))
