"""What a cache and its layers hold, and which bundle a few digits of a digest mean. Nothing is checked here but names."""
from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidec.cache.clean import Kind, contents
from tidec.cache.entry import digest_of, is_built
from tidec.cache.folder import check_closed, private_folder
from tidec.cache.key import Cache
from tidec.emit.bundle import ASK
from tidec.emit.place import MANIFEST
from tidec.errors import Diagnostic, TidecError

MIN_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Listed:
    """A bundle as it says of itself, unchecked. folder: the cache or layer that it is in.  topology: "" where it says none that can be read.

    used: when it was used last, seconds since 1970.
    """

    path: Path
    folder: Path
    digest: str
    topology: str
    num_groups: int
    num_plans: int
    is_built: bool
    is_spare: bool
    bytes: int
    used: float


def listed(cache: Cache) -> tuple[Listed, ...]:
    """Every bundle: those of the own folder, then those of each layer, in order of digest. Raises C003 where the own folder is not one's own."""
    _check_own(cache)
    return tuple(_listed(item.path, folder, item.kind, item.bytes, item.used)
                 for folder in (cache.folder, *cache.layers) for item in contents(folder) if item.kind in (Kind.BUNDLE, Kind.SPARE))


def resolve(cache: Cache, digits: str) -> Path:
    """The first bundle, own folder before layers, whose digest begins with these digits.

    Raises C007 where there is none, or bundles of more than one digest; C003 where the folder is not one's own, or others can write the entry of a layer.
    """
    _check_own(cache)
    if not re.fullmatch(r"[0-9a-f]{%d,64}" % MIN_DIGITS, digits):
        raise TidecError(Diagnostic("C007", f'"{digits}" is no digest of a bundle', reason=f"a digest is {MIN_DIGITS} to 64 digits of 0-9a-f", help="tidec cache ls lists all"))
    found = [(item.path, folder) for folder in (cache.folder, *cache.layers) for item in contents(folder)
             if item.kind is Kind.BUNDLE and item.path.name.startswith(digits)]
    digests = sorted({digest_of(path) for path, _ in found})
    if len(digests) != 1:
        more = f"it could be {', '.join(d[:12] + '...' for d in digests)}" if digests else f"looked in {', '.join(map(str, (cache.folder, *cache.layers)))}"
        raise TidecError(Diagnostic("C007", f"{'no' if not digests else 'more than one'} bundle's digest begins with {digits}", reason=more,
                                    help="give more digits" if digests else "tidec cache ls lists all"))
    path, folder = found[0]
    if folder != cache.folder:
        check_closed(path)
    return path


def chosen(cache: Cache, digits: Sequence[str], *, with_layers: bool) -> tuple[Path, ...]:
    """The bundles that some digits mean; without any: all of the own folder, and with_layers those of layers too, spares included."""
    if digits:
        return tuple(dict.fromkeys(resolve(cache, d) for d in digits))
    return tuple(b.path for b in listed(cache) if with_layers or b.folder == cache.folder)


def _check_own(cache: Cache) -> None:
    if cache.folder.is_symlink() or cache.folder.exists():
        private_folder(cache.folder)


def _listed(path: Path, folder: Path, kind: Kind, size: int, used: float) -> Listed:
    topology, num_groups, num_plans = "", 0, 0
    try:
        manifest, ask = (json.loads((path / name).read_bytes()) for name in (MANIFEST, ASK))
        num_groups, num_plans = len(manifest["groups"]), len(manifest["plans"])
        topology = f"{int(ask['topology']['nodes'])}x{int(ask['topology']['lanes'])}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass        # tidec cache verify says what is wrong with it
    return Listed(path, folder, digest_of(path), topology, num_groups, num_plans, is_built(path), kind is Kind.SPARE, size, used)
