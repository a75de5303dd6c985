"""What a wheel holds: every package of the tree, and the three folders that ship beside it."""
from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_folder_with_source_is_in_the_distribution():
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    own = {p.parent.relative_to(ROOT).as_posix().replace("/", ".") for p in (ROOT / "tidec").rglob("__init__.py")}
    shipped = {}
    for top in ("templates", "runtime", "schedules"):
        for file in (ROOT / top).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                folder = file.parent.relative_to(ROOT).as_posix()
                shipped["tidec._shipped." + folder.replace("/", ".")] = folder
    assert set(setup["packages"]) == own | set(shipped)
    assert {name: folder for name, folder in setup["package-dir"].items() if name in shipped} == shipped
    endings = {p.suffix for top in ("templates", "runtime", "schedules") for p in (ROOT / top).rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert endings <= {pattern.removeprefix("*") for pattern in setup["package-data"]["*"]}
