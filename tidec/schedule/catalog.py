"""The schedules that ship with tidec: found by name, loaded by path, never installed as modules."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidec.errors import Diagnostic, Spot, TidecError
from tidec.schedule.program import Program
from tidec.schedule.step import Step
from tidec.schedule.tracer import MISTAKES, refusal, run_traced, trace
from tidec.shipped import folder


STEP = "backward"
STEP_FILE = f"schedules/steps/{STEP}.py"


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
    return _function(path(name), name, f"schedules/{name}.py", source)


def _function(file: Path, name: str, shown: str, source: str) -> Callable:
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


def step_path() -> Path:
    """The file of the step of backward."""
    return folder("schedules") / "steps" / f"{STEP}.py"


def traced_step(gather: Program, reduce: Program, *, single_node: bool, slot_reuse: bool, ahead: bool, source: str = "", is_played: bool = False) -> Program:
    """One branch of a step of backward: the walks of two programs and what stands between them.

    slot_reuse: the gradients lie in the landing that the all-gather of the step lands in. ahead: the all-gather is issued before the network phase, else behind.
    source: replaces the file's text (for mutants in tests). is_played: for the interpreter, see `Step`.
    """
    if gather.lanes != reduce.lanes:
        raise TidecError(Diagnostic("P007", f"the parts are for {gather.lanes} and for {reduce.lanes} lanes", help="trace both for one lane count"))
    function = _function(step_path(), STEP, STEP_FILE, source)
    step = Step(STEP, str(step_path()), STEP_FILE, gather=gather, reduce=reduce, single_node=single_node, is_played=is_played)
    return run_traced(step, function, slot_reuse=slot_reuse, ahead=ahead)
