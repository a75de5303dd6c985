"""Proofs that are kept by class: a proof is what was put there by the same prover, or it is found again.

    <cache>/proofs/<key>             the proof of one class of programs, with its own sha256 on the first line

A folder that cannot be written costs a note, not the command. Layers are searched after the own folder and never written.
"""
from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tidec.cache.folder import ELSEWHERE, layer_folder, private_folder, sync
from tidec.cache.key import Cache
from tidec.cache.workspace import workspace
from tidec.errors import Diagnostic, Level, TidecError

PROOFS = "proofs"
_PROOF_SCHEMA = "tidec.proof/1"


@dataclass(slots=True)
class ProofStore:
    """Proofs that were found before. identity: what every key depends on (`key.prover_identity`).

    folders: one's own, then those of layers.  hits, misses: how often `get` knew the key.
    notes: entries that were ignored, and why nothing could be written.
    """

    folders: tuple[Path, ...]
    identity: str
    hits: int = 0
    misses: int = 0
    notes: list[Diagnostic] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.folders[0]

    def get(self, key: str) -> str:
        """What was put under this key by the same prover; "" where nothing was, or where it is not what was put."""
        name = self._name(key)
        value = next(filter(None, (self._read(folder / name) for folder in self.folders)), "")
        self.hits, self.misses = self.hits + bool(value), self.misses + (not value)
        return value

    def put(self, key: str, value: str) -> None:
        """Keep a value under this key; a folder that cannot be written gives one note."""
        assert value
        name = self._name(key)
        try:
            with workspace(self.folder.parent) as work:
                private_folder(self.folder)
                aside = work / name
                aside.write_bytes(f"{proof_head(name, value)}\n{value}".encode())
                sync(aside)
                os.replace(aside, self.folder / name)
                sync(self.folder)
        except TidecError as error:
            self._not_kept(error.diagnostics[0].reason or error.diagnostics[0].sentence)
        except OSError as error:
            self._not_kept(error.strerror or str(error))

    def _read(self, file: Path) -> str:
        try:
            value = read_proof(file)
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except (OSError, ValueError) as error:
            self.notes.append(Diagnostic("C004", f"the kept proof {file} is ignored, and proved again", reason=getattr(error, "strerror", "") or str(error),
                                         help="nothing: a proof that was found again replaces it", level=Level.NOTE))
            return ""
        if file.parent == self.folder:
            with suppress(OSError):
                os.utime(file)      # gc counts from the last use
        return value

    def _name(self, key: str) -> str:
        return hashlib.sha256(f"{self.identity}\n{key}".encode()).hexdigest()

    def _not_kept(self, reason: str) -> None:
        note = Diagnostic("E003", f"proofs cannot be kept in {self.folder}", reason=reason, help=ELSEWHERE, level=Level.NOTE)
        if note not in self.notes:
            self.notes.append(note)


def proof_head(name: str, value: str) -> str:
    """The first line of a kept proof. The name is in it too, so that an entry under another key's name is no proof of that key."""
    return f"{_PROOF_SCHEMA} {name} sha256 {hashlib.sha256(value.encode('utf-8', errors='surrogateescape')).hexdigest()}"


def read_proof(file: Path) -> str:
    """The proof that a file keeps. Raises OSError; ValueError where it is not what was put there."""
    head, _, value = file.read_bytes().decode("utf-8", errors="surrogateescape").partition("\n")
    if head != proof_head(file.name, value):
        raise ValueError("its first line is not the digest of the rest")
    return value


def open_proofs(cache: Cache, identity: str) -> ProofStore:
    """The proof store of a cache. Raises C003 where a folder is not the user's own, or that of a layer can be written by others than its owner.

    A folder that is missing is made by the first `put`.
    """
    for folder in (cache.folder, cache.folder / PROOFS):
        if os.path.lexists(folder):
            private_folder(folder)
    layers = tuple(layer / PROOFS for layer in cache.layers)
    return ProofStore((cache.folder / PROOFS, *(folder for folder in layers if os.path.lexists(folder) and layer_folder(folder) is None)), identity)
