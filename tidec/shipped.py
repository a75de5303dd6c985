"""Where templates/, runtime/ and schedules/ lie: beside the package in a checkout, inside it in a wheel."""
from __future__ import annotations

from pathlib import Path


def folder(name: str) -> Path:
    """The folder `templates`, `runtime` or `schedules`."""
    assert name in ("templates", "runtime", "schedules")
    package = Path(__file__).resolve().parent
    beside = package.parent / name
    if (package.parent / "pyproject.toml").is_file() and beside.is_dir():
        return beside
    return package / "_shipped" / name
