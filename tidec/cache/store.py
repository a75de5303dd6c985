"""What is kept: proofs by class and bundles by digest, each written aside and renamed into place.

    <cache>/proofs/<key>             the proof of one class of programs, with its own sha256 on the first line
    <cache>/<bundle digest>/         one bundle

The folder is the user's own (mode 0700). An entry that is not what was written there is never trusted; a folder that cannot
be written costs time, not the command.
"""
from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidec.cache.folder import ELSEWHERE, fresh_name, is_same_tree, private_folder, swap, unwritable, write_aside
from tidec.errors import Diagnostic, Level, TidecError

if TYPE_CHECKING:
    from tidec.emit.bundle import Bundle

_PROOF_SCHEMA = "tidec.proof/1"


@dataclass(slots=True)
class ProofStore:
    """Proofs that were found before. identity: what every key depends on (`key.prover_identity`).

    hits, misses: how often `get` knew the key.  notes: entries that were ignored, and why nothing could be written.
    """

    folder: Path
    identity: str
    hits: int = 0
    misses: int = 0
    notes: list[Diagnostic] = field(default_factory=list)

    def get(self, key: str) -> str:
        """What was put under this key by the same prover; "" where nothing was, or where it is not what was put."""
        file = self._file(key)
        value = ""
        try:
            text = file.read_bytes().decode("utf-8", errors="surrogateescape")
            head, _, value = text.partition("\n")
            if head != self._head(file, value):
                self._ignore(file, "its first line is not the digest of the rest")
                value = ""
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self._ignore(file, error.strerror or str(error))
        self.hits, self.misses = self.hits + bool(value), self.misses + (not value)
        return value

    def put(self, key: str, value: str) -> None:
        """Keep a value under this key; a folder that cannot be written gives one note."""
        assert value
        file = self._file(key)
        try:
            private_folder(self.folder.parent)
            private_folder(self.folder)
            write_aside(file, f"{self._head(file, value)}\n{value}".encode())
        except TidecError as error:
            self._not_kept(error.diagnostics[0].reason or error.diagnostics[0].sentence)
        except OSError as error:
            self._not_kept(error.strerror or str(error))

    def _file(self, key: str) -> Path:
        return self.folder / hashlib.sha256(f"{self.identity}\n{key}".encode()).hexdigest()

    def _head(self, file: Path, value: str) -> str:
        # The name is in it too, so that an entry under another key's name is no proof of that key.
        return f"{_PROOF_SCHEMA} {file.name} sha256 {hashlib.sha256(value.encode('utf-8', errors='surrogateescape')).hexdigest()}"

    def _ignore(self, file: Path, reason: str) -> None:
        self.notes.append(Diagnostic("C004", f"the kept proof {file} is ignored, and proved again", reason=reason,
                                     help="nothing: a proof that was found again replaces it", level=Level.NOTE))

    def _not_kept(self, reason: str) -> None:
        note = Diagnostic("E003", f"proofs cannot be kept in {self.folder}", reason=reason, help=ELSEWHERE, level=Level.NOTE)
        if note not in self.notes:
            self.notes.append(note)


def open_proofs(cache: Path, identity: str) -> ProofStore:
    """The proof store of a cache folder. Raises C003 where the folder is not the user's own; one that is missing is made by the first `put`."""
    for folder in (cache, cache / "proofs"):
        if os.path.lexists(folder):
            private_folder(folder)
    return ProofStore(cache / "proofs", identity)


def keep_bundle(cache: Path, write: Callable[[Path], Bundle]) -> tuple[Bundle, tuple[Diagnostic, ...]]:
    """Have `write` write a bundle into a new folder, then keep it as `<cache>/<bundle digest>/`.

    One that is there already stays if every byte is the same; else it is replaced, with a note.
    Raises C003 where the cache is not the user's own, E003 where it cannot be written.
    """
    private_folder(cache)
    aside, notes = cache / f".new-{fresh_name()}", ()
    try:
        try:
            bundle = write(aside)
            place = cache / bundle.digest
            if os.path.lexists(place) and not is_same_tree(aside, place):
                notes = (Diagnostic("C004", f"the kept bundle {place} was not what was written there, and is replaced",
                                    help="nothing: it is whole again", level=Level.NOTE),)
            if notes or not os.path.lexists(place):
                swap(aside, place)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise unwritable(cache, error, help=f"give a folder with -o DIR, or {ELSEWHERE}") from error
    return replace(bundle, path=place), notes
