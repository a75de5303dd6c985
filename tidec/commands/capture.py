"""`tidec capture`: the parameter groups of the model that a training script shards, as a group file."""
from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tidec.commands.answer import Answer
from tidec.commands.tell import count_text
from tidec.errors import Diagnostic, Exit, Level, TidecError
from tidec.inputs.document import given_path, quoted
from tidec.inputs.signature import load_groups

_MAX_WORLD = 2**31 - 1


def run(*, script: str, args: tuple[str, ...], out: str, world: str, deadline: str, is_forced: bool, environment: Mapping[str, str]) -> Answer:
    """Run a script as rank 0 of `world` ranks until its model is known, and write its groups to `out`.

    Raises P001; C002 where `out` exists; E001 without torch; F001 where the script fails, is silent too long or trains no such model; what `capture` raises.
    """
    ranks, seconds = _number(world, "--world", _MAX_WORLD), _number(deadline, "--deadline", 10**6)
    if not os.path.isfile(script):
        raise TidecError(Diagnostic("P001", f"there is no script {quoted(script)}", help="give the Python file that trains the model"))
    given_path(out, what="-o")
    if os.path.lexists(out) and not is_forced:
        raise TidecError(Diagnostic("C002", f"{quoted(out)} exists", help="give -o another file, or --force to replace it"))
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    told = _run(script, args, out, ranks=ranks, seconds=seconds, environment=environment)
    signature = load_groups(out)
    total = sum(p.elems for g in signature.groups for p in g.params)
    fields = {"out": out, "model": told["model"], "groups": len(signature.groups), "total_params": total, "ranks": told["ranks"], "stock": told["stock"]}
    notes = _stock_notes(told["stock"])
    if told["others"]:
        notes += (str(Diagnostic("F001", f"only {told['model']}, the first that ran, is captured", level=Level.NOTE,
                                reason=f"the script has {count_text(told['others'], 'other module')} under fully_shard that {told['model']} does not contain",
                                help="call fully_shard on the whole model, or tidec.capture(model) in the script")),)
    return Answer(Exit.OK, fields, f"{told['model']}: {count_text(len(signature.groups), 'group')}, {total:,} parameters\n{_ranks_text(told['ranks'])}\n{out}", notes)


def _ranks_text(ranks: int) -> str:
    """Which topology the file is for."""
    if ranks == 1:
        return "sharded over 1 rank: nothing is gathered; give --world the ranks of the job"
    on_two = f" on one machine, 2x{ranks // 2} on two" if ranks > 2 and ranks % 2 == 0 else ""
    return f"sharded over {ranks} ranks: compile with --topo 1x{ranks}{on_two}"


def _stock_notes(stock: list[dict[str, str]]) -> tuple[str, ...]:
    """What a group file cannot say: one note a reason, with the first group that has it."""
    by_reason: dict[tuple[str, str, str], list[str]] = {}
    for one in stock:
        by_reason.setdefault((one["code"], one["reason"], one["help"]), []).append(one["group"])
    return tuple(str(Diagnostic(code, f"group {quoted(groups[0])}{f' and {len(groups) - 1} more' if len(groups) > 1 else ''} would keep stock collectives under tidec.install",
                                reason=reason, help=help or "nothing: the other groups are not touched by it", level=Level.NOTE)) for (code, reason, help), groups in by_reason.items())


def _number(text: str, option: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= most):
        raise TidecError(Diagnostic("P001", f"{option} is {quoted(text)}", help=f"write a whole number, 1..{most}"))
    return int(text)


def _run(script: str, args: tuple[str, ...], out: str, *, ranks: int, seconds: int, environment: Mapping[str, str]) -> dict:
    """Run the script in a process of its own, as torchrun would start its rank 0; what it told."""
    with tempfile.TemporaryDirectory(prefix="tidec-capture-") as folder:
        file = Path(folder) / "told.json"
        asked = json.dumps({"world": ranks, "out": os.path.abspath(out), "told": os.fspath(file)})
        path = os.pathsep.join(p for p in (str(Path(__file__).resolve().parents[2]), environment.get("PYTHONPATH", "")) if p)
        started = {"RANK": "0", "LOCAL_RANK": "0", "GROUP_RANK": "0", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
                   "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
        with tempfile.TemporaryFile() as said:
            try:
                code = subprocess.run([sys.executable, "-m", "tidec.run.script", asked, script, *args], env={**environment, **started, "PYTHONPATH": path},
                                      stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, timeout=seconds, check=False).returncode
            except subprocess.TimeoutExpired:
                raise _failed(script, f"it ran for {count_text(seconds, 'second')} without a forward pass of a model under fully_shard",
                              "let it build its model first, or give --deadline SECONDS") from None
            size = said.seek(0, os.SEEK_END)
            said.seek(max(0, size - 4096))
            lines = [line for line in said.read().decode("utf-8", "replace").splitlines() if line.strip()]
        if not file.is_file():
            end = f"it left with exit code {code}" if code >= 0 else f"signal {-code} ended it"
            raise _failed(script, "; its last line: ".join((end, *(line.removeprefix("[rank0]: ") for line in lines[-1:]))), "run it by itself first; on a machine without GPUs it must use the device cpu or meta")
        told = json.loads(file.read_text(encoding="utf-8"))
    if "error" in told:
        raise TidecError(Diagnostic(**told["error"]))
    return told


def _failed(script: str, reason: str, help: str) -> TidecError:
    return TidecError(Diagnostic("F001", f"{quoted(script)} gave no model", reason=reason, help=help))
