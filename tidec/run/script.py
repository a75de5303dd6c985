"""Runs a training script until its model is known, in one process that stands for all ranks, and writes the model's parameter groups.

Run as `python -m tidec.run.script TOLD SCRIPT [ARGS]`; TOLD is JSON: `world` (ranks), `out` (the group file) and `told` (what came of it).

The process group is torch's fake one: collectives return at once and move nothing, and `init_process_group` of the script, whatever backend it asks
for, gives that one; `destroy_process_group` leaves it. The script is stopped at the first forward pass of a model under `fully_shard`; where it ends before one, the model is the one
module under `fully_shard` that no other contains. Whatever the script raises before its model is known ends the process as it ends any script.
"""
from __future__ import annotations

import json
import os
import runpy
import sys
from collections import Counter
from collections.abc import Callable

import torch.distributed as dist
import torch.distributed.device_mesh
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.testing._internal.distributed.fake_pg import FakeStore

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.document import quoted
from tidec.run.capture import capture, class_name, groups_of, write_groups
from tidec.run.fallback import why_stock


class _Known(BaseException):
    """Ends the script: its model is known. Not an Exception, so that scripts do not handle it."""


def main(asked: str, script: str, args: list[str]) -> int:
    """Run a script and write its model's groups, and beside it what came of it. Returns 0, or 1 where a diagnostic says what is wrong."""
    given = json.loads(asked)
    told: dict[str, object] = {}

    def tell(model: nn.Module, others: int) -> None:
        try:
            content = capture(model)
            write_groups(content, given["out"])
            told.update(model=content["model"], others=others, ranks=_ranks(model), stock=_beyond_the_file(model))
        except TidecError as error:
            told["error"] = _said(error)
        _write(told, given["told"])

    try:
        _run(script, args, tell, world=given["world"])
    except TidecError as error:
        told["error"] = _said(error)
        _write(told, given["told"])
    return 1 if "error" in told else 0


def _run(script: str, args: list[str], tell: Callable[[nn.Module, int], None], *, world: int) -> None:
    """Run a script, and tell once of the model that it trains and of how many outermost modules under `fully_shard` it has beside that. Raises F001.

    NOTE: told where the forward pass begins, not once the script has ended: its `finally` and `with` clauses run between, and may raise what they like.
    """
    states: list[FSDPState] = []
    ran: list[FSDPState] = []
    made = FSDPState.__init__

    def make(state: FSDPState) -> None:
        made(state)
        states.append(state)

    def known(state: FSDPState) -> None:
        if not ran:
            ran.append(state)
            model = state._modules[0]
            tell(model, sum(root is not model for root in _outermost(states)))
        raise _Known

    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    for module in (dist, dist.distributed_c10d, torch.distributed.device_mesh):
        module.init_process_group = lambda *args, **options: None
    for module in (dist, dist.distributed_c10d):
        module.destroy_process_group = lambda *args, **options: None
    FSDPState.__init__ = make
    # A forward pass of a root begins with it, so that parameters may still be on the meta device.
    FSDPState._lazy_init = known
    sys.argv = [script, *args]
    sys.path[0] = os.path.dirname(os.path.realpath(script))        # as Python does
    try:
        runpy.run_path(script, run_name="__main__")
    except _Known:
        pass
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
    if ran:
        return
    roots = _outermost(states)
    if len(roots) != 1:
        names = ", ".join(map(class_name, roots))
        raise TidecError(Diagnostic(
            "F001", f"{quoted(script)} ended without a forward pass of a model under fully_shard",
            reason=f"it made {len(roots)} of them: {names}" if roots else "it never called fully_shard",
            help="let it run one, or make one model only" if roots else "run the script so that it reaches model(inputs) under fully_shard; its arguments go behind --"))
    tell(roots[0], 0)


def _said(error: TidecError) -> dict[str, object]:
    d = error.diagnostics[0]
    return {"code": d.code, "sentence": d.sentence, "reason": d.reason, "help": d.help}


def _write(told: dict[str, object], path: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(told, file)


def _ranks(model: nn.Module) -> int:
    """Over how many ranks most groups of a model are sharded."""
    return Counter(getattr(live.group.mesh_info, "shard_mesh_size", 1) for live in groups_of(model)).most_common(1)[0][0]


def _beyond_the_file(model: nn.Module) -> list[dict[str, str]]:
    """Why groups of a model stay stock, where that cannot be read off its group file (as P012 is), nor depends on where it runs."""
    return [{"group": live.name, "code": r.code, "reason": r.reason, "help": r.help} for live in groups_of(model) for r in why_stock(live) if r.code not in ("P012", "F108")]


def _outermost(states: list[FSDPState]) -> list[nn.Module]:
    """The modules under `fully_shard` that no other one contains."""
    modules = list(dict.fromkeys(module for state in states for module in getattr(state, "_modules", ())))
    inner = {id(below) for module in modules for below in module.modules() if below is not module}
    return [module for module in modules if id(module) not in inner]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
