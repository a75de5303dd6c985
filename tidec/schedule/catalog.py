"""The schedules that ship with tidec: found by name, loaded by path, never installed as modules."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidec.errors import Diagnostic, TidecError
from tidec.schedule.program import Program
from tidec.schedule.tracer import trace
from tidec.shipped import folder


def names() -> tuple[str, ...]:
    """The schedules' names, sorted."""
    return tuple(sorted(p.stem for p in folder("schedules").glob("*.py")))


def path(name: str) -> Path:
    """The file of a schedule. Raises P001 if there is none of that name."""
    file = folder("schedules") / f"{name}.py"
    if name not in names():
        raise TidecError(Diagnostic("P001", f'there is no schedule "{name}"', help=f"one of: {', '.join(names())}"))
    return file


def function(name: str, source: str = "") -> Callable:
    """The schedule function of that name; `source` replaces the file's text (for mutants in tests)."""
    file = path(name)
    scope: dict[str, object] = {"__name__": f"tidec.schedules.{name}"}
    exec(compile(source or file.read_text(encoding="utf-8"), str(file), "exec"), scope)
    return scope[name]


def traced(name: str, lanes: int, *, source: str = "", **knobs: object) -> Program:
    """The program of a shipped schedule for that lane count (1 <= lanes <= 72) and those knobs, for every node count."""
    return trace(function(name, source), name, lanes, str(path(name)), f"schedules/{name}.py", **knobs)
