"""The schedules that ship with tidec: found by name, loaded by path, never installed as modules."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidec.errors import Diagnostic, Spot, TidecError
from tidec.schedule.program import Program
from tidec.schedule.tracer import MISTAKES, refusal, trace
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
    """The schedule function of that name; `source` replaces the file's text (for mutants in tests). Raises P001, P007."""
    file, shown = path(name), f"schedules/{name}.py"
    scope: dict[str, object] = {"__name__": f"tidec.schedules.{name}"}
    try:
        exec(compile(source or file.read_text(encoding="utf-8"), str(file), "exec"), scope)
    except SyntaxError as problem:
        spot = Spot(shown, problem.lineno or 0, (problem.text or "").strip())
        raise TidecError(Diagnostic("P007", f"{shown} is not Python: {problem.msg}", (spot,), help="correct the line")) from problem
    except MISTAKES as problem:
        raise refusal(problem, str(file), shown) from problem
    if not callable(scope.get(name)):
        raise TidecError(Diagnostic("P007", f"{shown} has no function {name}", (Spot(shown, 0),), help=f"name the schedule like its file: def {name}(s): ..."))
    return scope[name]


def traced(name: str, lanes: int, *, source: str = "", **knobs: object) -> Program:
    """The program of a shipped schedule for that lane count (1 <= lanes <= 72) and those knobs, for every node count."""
    return trace(function(name, source), name, lanes, str(path(name)), f"schedules/{name}.py", **knobs)
