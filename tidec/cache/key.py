"""Where the cache is, and what its entries depend on beside what they are about."""
from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

# The rooms whose text decides what a proof says: the tree, the language and the prover itself.
_PROVER_ROOMS = ("index", "schedule", "verify")


def cache_folder(*, asked: str = "", xdg: str = "", home: str = "~") -> Path:
    """The cache folder: `asked` (TIDEC_CACHE_DIR), else `xdg`/tidec (XDG_CACHE_HOME), else `home`/.cache/tidec.

    "" = not set. A relative XDG_CACHE_HOME counts as not set, as its specification says.
    Returns an absolute path; nothing is made.
    """
    if asked:
        return Path(asked).expanduser().absolute()
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "tidec"
    return Path(home).expanduser().absolute() / ".cache" / "tidec"


def prover_identity() -> str:
    """64 hex digits that change with every byte of the tree, the language and the prover, and with the version of z3."""
    whole = hashlib.sha256()
    package = Path(__file__).resolve().parent.parent
    for room in _PROVER_ROOMS:
        for file in sorted((package / room).glob("*.py")):
            whole.update(f"{room}/{file.name}\0".encode())
            whole.update(hashlib.sha256(file.read_bytes()).digest())
    whole.update(f"z3 {_version('z3-solver')}".encode())
    return whole.hexdigest()


def _version(distribution: str) -> str:
    """The version of an installed distribution, "" where there is none; reading it imports nothing of it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
