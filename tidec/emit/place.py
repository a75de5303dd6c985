"""How a bundle's files come to stand in their folder: all of them at once, or none."""
from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tidec.errors import Diagnostic, TidecError

MANIFEST = "manifest.json"
BESIDE = ("manifest.sha256", "lib", "build.json", "build.sha256", "build.log")     # what a bundle has beside what its manifest lists


def place(files: Mapping[str, bytes], out: Path, *, is_forced: bool) -> Path:
    """Write the files aside, sync them, and rename their folder to `out`.

    out: absent or an empty folder; with is_forced also a folder that holds a bundle, which is replaced.
    Returns its real path.  Raises C002 where something else stands there, E003 where it cannot be written.
    """
    target = Path(os.path.realpath(out))
    check_free(out, is_forced=is_forced)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent, ignore_cleanup_errors=True) as beside:
            aside = Path(beside) / "bundle"
            aside.mkdir()
            for name, data in files.items():
                (aside / name).write_bytes(data)
            # Written first and synced after: the disk then has all of it to do at once.
            for path in (*(aside / name for name in files), aside):
                sync(path)
            if target.is_dir():
                os.rename(target, Path(beside) / "before")
            try:
                os.rename(aside, target)
            except OSError:
                if (Path(beside) / "before").is_dir() and not target.exists():
                    os.rename(Path(beside) / "before", target)
                raise
            sync(target.parent)
            shutil.rmtree(Path(beside) / "before", ignore_errors=True)
    except OSError as problem:
        raise _unwritable(out, problem) from problem
    return target


def check_free(out: Path, *, is_forced: bool) -> None:
    """Whether `place` may put a bundle at `out`. Raises C002 where something else stands there, E003 where that cannot be seen."""
    target = Path(os.path.realpath(out))
    try:
        if not os.path.lexists(target):
            return
        if not target.is_dir():
            raise TidecError(Diagnostic("C002", f"{out} is a file", help="give a folder with -o DIR"))
        if not any(target.iterdir()):
            return
        strange = _strange(target)
    except OSError as problem:
        raise _unwritable(out, problem) from problem
    if strange:
        raise TidecError(Diagnostic("C002", f"{out} holds other things than a bundle", reason=strange, help="give a new or an empty folder with -o DIR"))
    if not is_forced:
        raise TidecError(Diagnostic("C002", f"{out} holds a bundle already", help="add --force to replace it, or give another folder"))


def _strange(folder: Path) -> str:
    """Why the folder is not a bundle and nothing else; empty if it is. What a bundle's manifest does not list is somebody's own."""
    try:
        # A pipe of that name would have its reader wait.
        manifest = json.loads((folder / MANIFEST).read_bytes()) if (folder / MANIFEST).is_file() else {}
        listed = set(manifest["files"]) if manifest["schema"].startswith("tidec.bundle/") else None
    except (FileNotFoundError, IsADirectoryError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        listed = None
    if listed is None:
        return f"it has no {MANIFEST} of a bundle"
    own = sorted(p.name for p in folder.iterdir() if p.name not in listed | {MANIFEST, *BESIDE})
    return f"the bundle there does not list {own[0]!r}" if own else ""


def _unwritable(out: Path, problem: OSError) -> TidecError:
    return TidecError(Diagnostic("E003", f"{out} cannot be written", reason=problem.strerror or str(problem), help="give another folder with -o DIR"))


def sync(path: Path) -> None:
    """A file's bytes, or a folder's names, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
