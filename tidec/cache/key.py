"""Where the cache is, and what its entries depend on beside what they are about."""
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidec.cache.folder import layer_folder
from tidec.errors import Diagnostic, TidecError

# The rooms whose text decides what a proof says: the tree, the language and the prover itself.
_PROVER_ROOMS = ("index", "schedule", "verify")


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache: one's own folder, read and written, and the folders of others that are searched after it, in order, and never written."""

    folder: Path
    layers: tuple[Path, ...] = ()


def open_cache(folder: Path, path: str) -> tuple[Cache, tuple[Diagnostic, ...]]:
    """The cache at `folder` with the layers of `path` (TIDEC_CACHE_PATH: folders with colons between), and a warning for each that is left out.

    Raises P001 where a layer is no absolute path, C003 where one is a link or can be written by others than its owner.
    """
    layers, notes = [], []
    for text in filter(None, path.split(":")):
        layer = Path(text)
        if not layer.is_absolute():
            raise TidecError(Diagnostic("P001", f"the cache layer {text} is no absolute path", help="write whole paths in TIDEC_CACHE_PATH, colons between"))
        if layer != folder and layer not in layers:
            note = layer_folder(layer)
            layers += [layer] if note is None else []
            notes += [] if note is None else [note]
    return Cache(folder, tuple(layers)), tuple(notes)


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


def cache_of(environment: Mapping[str, str]) -> tuple[Cache, tuple[Diagnostic, ...]]:
    """The cache that variables name, and a warning for each layer that is left out. Raises P001, C003."""
    folder = cache_folder(asked=environment.get("TIDEC_CACHE_DIR", ""), xdg=environment.get("XDG_CACHE_HOME", ""), home=environment.get("HOME", "") or "~")
    return open_cache(folder, environment.get("TIDEC_CACHE_PATH", ""))


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
