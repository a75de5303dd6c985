"""`tidec doctor`: what this machine has and lacks for each target, and how to get it."""
from __future__ import annotations

import importlib.util
import platform
from collections.abc import Callable
from dataclasses import dataclass

from tidec.build.nccl import MIN_NCCL, Nccl, find_nccl
from tidec.build.toolchain import count_gpus, find_architecture, find_compiler, find_nvcc
from tidec.commands.answer import Answer
from tidec.commands.tell import table
from tidec.emit.targets import TARGETS, Target, target as find_target
from tidec.errors import Exit, TidecError

# What a target takes beside Python, in the order in which it is shown. A package's extra brings it.
_COMPILE = ("z3", "networkx", "jinja2")
_EXTRAS = {"z3": "compile", "networkx": "compile", "jinja2": "compile", "numpy": "run"}
_NEEDS: dict[str, tuple[str, ...]] = {
    "python": ("numpy",), "echo": (*_COMPILE, "C++ compiler"), "host": ("numpy", "C++ compiler"),
    "loopback": ("numpy", "C++ compiler", "nvcc", "architecture", "a GPU"), "nccl": ("numpy", "C++ compiler", "nvcc", "architecture", "two GPUs"),
}


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that a target takes. found: what there is, "" where it is missing; reason, help: of what is missing."""

    what: str
    found: str
    reason: str = ""
    help: str = ""


def run(*, target: str | None) -> Answer:
    """Exit 6 where the asked target cannot be built and run here; without one always 0. Raises P001 where there is no such target."""
    rows = TARGETS if target is None else (find_target(target),)
    needs = {row.name: tuple(map(_need, _NEEDS[row.name])) for row in rows}
    is_met = all(n.found for found in needs.values() for n in found)
    rails = find_nccl() if any(row.name == "nccl" for row in rows) else None
    fields: dict[str, object] = {"python": platform.python_version(), "targets": [_jsonable(row, needs[row.name]) for row in rows]}
    if rails is not None:
        fields["nccl"] = {"version": rails.version, "path": rails.path, "ok": not rails.lacks, "reason": rails.lacks}
    text = _text(rows, needs) if rails is None else f"{_text(rows, needs)}\n{_rails_text(rails)}"
    return Answer(Exit.ENVIRONMENT if target is not None and not is_met else Exit.OK, fields, text)


def _need(what: str) -> Need:
    if what in _EXTRAS:
        has = importlib.util.find_spec(what) is not None
        return Need(what, "installed") if has else Need(what, "", "the package is not installed", f'pip install "tidec[{_EXTRAS[what]}]"')
    if what in ("a GPU", "two GPUs"):
        least, count = (1 if what == "a GPU" else 2), count_gpus()
        return Need(what, f"{count}") if count >= least else Need(what, "", f"nvidia-smi lists {count}", "run it on a machine with them")
    looks: dict[str, Callable[[], str]] = {
        "C++ compiler": lambda: find_compiler().version, "nvcc": lambda: find_nvcc().version, "architecture": find_architecture,
    }
    try:
        return Need(what, looks[what]())
    except TidecError as problem:
        d = problem.diagnostics[0]
        return Need(what, "", f"{d.sentence}: {d.reason}" if d.reason else d.sentence, d.help)


def _rails_text(nccl: Nccl) -> str:
    """Plans of one node need no NCCL; those of several nodes move over its rails."""
    of = "for plans of several nodes"
    found = f"NCCL {nccl.version} at {nccl.path}" if nccl.version else "NCCL"
    if not nccl.lacks:
        return f"found    {found}, {of}"
    want = ".".join(map(str, MIN_NCCL))
    return f"missing  {found}: {nccl.lacks}; {of}\n  help: pip install 'tidec[cu13]' brings one of {want} or later; put its libnccl.so.2 first, in LD_PRELOAD"


def _jsonable(row: Target, needs: tuple[Need, ...]) -> dict[str, object]:
    return {
        "name": row.name, "ok": all(n.found for n in needs), "found": {n.what: n.found for n in needs if n.found},
        "missing": [{"what": n.what, "reason": n.reason, "help": n.help} for n in needs if not n.found],
    }


def _text(rows: tuple[Target, ...], needs: dict[str, tuple[Need, ...]]) -> str:
    lines = [table(("target", "runs here", "takes"), [(r.name, "yes" if all(n.found for n in needs[r.name]) else "no", r.needs) for r in rows])]
    every = {n.what: n for row in rows for n in needs[row.name]}
    lines += ["", *(f"found    {n.what}: {n.found}" for n in every.values() if n.found)]
    for n in every.values():
        if not n.found:
            lines += [f"missing  {n.what}: {n.reason}", f"  help: {n.help}"]
    return "\n".join(lines)
