"""Which compiler there is, and running it: every command has a deadline, and its output is kept for the message."""
from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidec.errors import Diagnostic, TidecError

_NAMES = ("g++", "c++", "clang++")
_SHOWN_LINES = 6


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler. command: its program and the arguments that $CXX gives it.  version: the first line that it says about itself."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """The compiler that $CXX names, else the first of g++, c++ and clang++ that is installed.

    Raises E002 where there is none, or where it does not answer.
    """
    named = os.environ.get("CXX", "")
    try:
        command = tuple(shlex.split(named)) if named.strip() else _NAMES
    except ValueError as problem:
        raise _missing(f"CXX is {named!r}, which is no command", str(problem)) from problem
    found = shutil.which(command[0]) if named.strip() else next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        raise _missing(f"the compiler {command[0]} was not found" if named.strip() else "no C++ compiler was found",
                       "CXX names it" if named.strip() else f"looked for {', '.join(_NAMES)} on PATH")
    whole = (found, *command[1:]) if named.strip() else (found,)
    lines = run_tool((*whole, "--version"), deadline_s=20.0).splitlines()
    return Compiler(whole, lines[0].strip() if lines else "")


def run_tool(command: Sequence[str], *, deadline_s: float, folder: Path | None = None) -> str:
    """Run a compiler and give what it printed, stdout and stderr together. folder: where it runs; `None` = here.

    Raises E002 with the first lines that it printed where it fails, cannot be started, or takes longer than deadline_s seconds.
    """
    shown = " ".join(shlex.quote(word) for word in command)
    try:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "LC_ALL": "C"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", timeout=deadline_s, check=False,
        )
    except subprocess.TimeoutExpired as problem:
        raise _missing(f"the compiler did not end within {deadline_s:.0f} s", shown) from problem
    except OSError as problem:
        raise _missing(f"the compiler {command[0]} cannot be started", problem.strerror or str(problem)) from problem
    if done.returncode:
        told = [line for line in done.stdout.splitlines() if line.strip()]
        errors = [line for line in told if "error" in line] or told
        raise TidecError(Diagnostic("E002", f"the compiler ended with {done.returncode}", reason=shown, example=tuple(errors[:_SHOWN_LINES]),
                                    help="try another compiler: CXX=clang++, or a newer g++ (C++17)"))
    return done.stdout


def _missing(sentence: str, reason: str) -> TidecError:
    return TidecError(Diagnostic("E002", sentence, reason=reason, help="install g++ (apt-get install g++), or set CXX to a C++17 compiler"))
