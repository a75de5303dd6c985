"""Where the cache is, and what its entries depend on beside what they are about."""
from __future__ import annotations

import hashlib
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
    """64 hex digits that change with every byte of the tree, the language and the prover, and with the version of z3.

    Raises ModuleNotFoundError where z3 is missing: there is no prover then.
    """
    # Loaded here, because a machine without z3 has a cache too.
    from tidec.verify.solver import version

    whole = hashlib.sha256()
    package = Path(__file__).resolve().parent.parent
    for room in _PROVER_ROOMS:
        for file in sorted((package / room).glob("*.py")):
            whole.update(f"{room}/{file.name}\0".encode())
            whole.update(hashlib.sha256(file.read_bytes()).digest())
    whole.update(f"z3 {version()}".encode())
    return whole.hexdigest()
