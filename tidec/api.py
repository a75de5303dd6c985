"""tidec from Python: compile a bundle, load one. What the command line does with text and paths, without its cache, printing and exit codes."""
from __future__ import annotations

import importlib
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tidec.cache.folder import private_folder
from tidec.cache.key import prover_identity
from tidec.cache.proofs import open_proofs
from tidec.emit.bundle import Bundle, read_bundle
from tidec.emit.targets import TARGETS
from tidec.emit.targets import target as check_target
from tidec.errors import Diagnostic, TidecError, TidecWarning
from tidec.inputs.ask import read_mode
from tidec.inputs.capability import choose_lowering
from tidec.inputs.document import given_path, quoted
from tidec.inputs.knobs import read_settings
from tidec.inputs.order import load_order
from tidec.inputs.signature import Signature, load_groups
from tidec.inputs.topology import Topology, parse_topology

if TYPE_CHECKING:
    from tidec.run.fsdp import Installed, Module
    from tidec.run.report import Report


def compile(
    topo: str | Topology, group: str | os.PathLike[str] | Signature, *, out: str | os.PathLike[str], knobs: Mapping[str, int | str] = {},
    capability: str | None = None, mode: str = "in_place", order: str | os.PathLike[str] | None = None, budget_gib: float | None = None, target: str | None = None,
    is_forced: bool = False, is_echoed: bool = True,
) -> Bundle:
    """Plan, prove and emit both collectives of every group; the bundle is written to `out`. The arguments are the options of `tidec compile`.

    topo: "8x8" or a topology file.  group: a group file.  knobs: as in `--set`, for example {"W": 4, "n_out": "full"}.
    capability: "p2p" or "nvls"; `None` = what the topology says.  mode: "in_place" or "slot_reuse", as in `install`.
    order: a tidec.order/1 file, how a step uses the groups; `None` = as FSDP2 does by default. It shapes the model's arena, and no plan.
    budget_gib: of the model's arena, in GiB of 2^30 bytes, at least a byte; a larger arena is refused, after the groups whose staging alone is
    larger were cut into more passes. `None` = any size.
    target: whose library is built beside the plans, "host", "loopback" or "nccl"; `None` = none, as for "python" and "echo".
    is_forced: a bundle that stands at `out` is replaced.
    Guaranteed: every plan of the bundle is proved, and with `is_echoed` the compiled program issues exactly its ops.
    Warns, by TidecWarning, of what the command would: V401 an arena above 80 GiB where no budget is given, P015 a landing that is mostly padding.
    Raises TidecError with the diagnostics that the command would print: P001 an argument, P002..P006 and P013 the inputs, the knobs or an order,
    V1xx..V3xx and V9xx a claim that does not hold, V401 an arena above the budget, V501 the echo, C001 and C002 `out`, E001 and E002 what is missing here.
    """
    topology = topo if isinstance(topo, Topology) else parse_topology(topo)
    signature = group if isinstance(group, Signature) else load_groups(os.fspath(group))
    settings = tuple(f"{name}={value}" for name, value in knobs.items())
    has_library = target is not None and check_target(target).has_library
    recorded = None if order is None else load_order(given_path(os.fspath(order), what="order"), signature)
    compiled = _pipeline("a bundle cannot be made here", "").compile(
        topology, signature, knobs=read_settings(settings, topology.lanes), lowering=choose_lowering(topology, capability), mode=read_mode(mode),
        out=given_path(os.fspath(out), what="out"), order=recorded, budget_bytes=None if budget_gib is None else _budget_bytes(budget_gib),
        target=target if has_library else None, is_forced=is_forced, is_echoed=is_echoed,
    )
    for warning in compiled.warnings:
        warnings.warn(TidecWarning(warning), stacklevel=2)
    return compiled.bundle


def load(path: str | os.PathLike[str]) -> Bundle:
    """The bundle at `path`, every digest checked; `load(path).plans[i].steps(rank)` iterates the ops of a rank. Raises C001."""
    return read_bundle(given_path(os.fspath(path), what="the bundle"))


DEADLINE_S = 1800.0
MAX_DEADLINE_S = 10.0**7


def install(
    model: Module, plans: str | os.PathLike[str] | None = None, *, mode: str = "in_place", target: str = "auto", require: bool = False,
    deadline_s: float = DEADLINE_S, poison: bool = False,
) -> Installed:
    """Have the collectives of a model under `fully_shard` run by plans; what has none keeps FSDP2's own.

    Called once on every rank, after `fully_shard` and before or after anything else: the optimizer, loading, the first step.
    plans: a bundle for the ranks that shard the model; `None` = rank 0 compiles one into the cache, and the others find it there.
    mode: "in_place" reads gradients where autograd left them; "slot_reuse" copies them into the vacated landing first, and frees them.
    target: "host" moves parameters on the CPU, "nccl" those on GPUs of one node; "auto" = what each group needs.  deadline_s: how long a collective, and install itself, waits for another rank.
    require: a group that stays stock is an error, and so is a call that would go stock later: it raises the reason on every rank before anything of it is done. FSDP2 has
    stopped in the middle of a step then: call `uninstall(model)`, and, from torch 2.13 on, `model.reset_iter_state()` to go on. Without it such calls print one line.
    poison: landings hold NaN once they are let go, so that a stale read shows.
    Guaranteed: on every rank the same groups run by plans; where it raises, nothing is changed. TIDEC_DISABLE=1 changes nothing at all.
    Raises the F codes (`tidec explain F016`: a rank did not come).
    """
    from tidec.run.fsdp import install as install_model
    from tidec.run.fsdp import tell
    from tidec.run.library import is_disabled, is_required, kept_cache

    cache, kept_notes = kept_cache()
    notes = list(kept_notes)

    def provide(signature: Signature, topo: str, name: str) -> Path:
        topology = parse_topology(topo)
        pipeline = _pipeline("plans cannot be made here", ", or give a bundle: tidec.install(model, plans=PATH)")
        store = open_proofs(cache, prover_identity())
        compiled = pipeline.compile(topology, signature, lowering=choose_lowering(topology, None), mode=read_mode(mode), cache=cache, store=store, target=name)
        notes.extend((*store.notes, *compiled.warnings))
        return compiled.bundle.path

    deadline_s = _deadline(deadline_s)
    made = install_model(model, plans=None if plans is None else given_path(os.fspath(plans), what="the bundle"), provide=provide, rt_folder=lambda: private_folder(cache.folder) / "rt",
                         target=_target(target), mode=read_mode(mode), is_required=require or is_required(), is_disabled=is_disabled(), deadline_s=deadline_s, is_poisoned=poison)
    tell(made, tuple(dict.fromkeys(notes)))
    return made


def uninstall(model: Module) -> None:
    """Give a model back to FSDP2. Every rank calls it at the same point. Raises F013, F015."""
    from tidec.run.fsdp import uninstall as uninstall_model

    uninstall_model(model)


def report(model: Module) -> Report:
    """What the collectives of an installed model were run by so far: calls by plan with the ops that were carried out in them, counted by kind and beside
    the plan's own counts, and stock calls with their reasons. Raises F015."""
    from tidec.run.fsdp import report as report_of

    return report_of(model)


def _pipeline(sentence: str, or_else: str) -> ModuleType:
    """What compiles. It is not loaded before it is needed: where there is only a bundle, there is neither z3 nor networkx. Raises E001."""
    try:
        return importlib.import_module("tidec.pipeline")
    except ModuleNotFoundError as problem:
        raise TidecError(Diagnostic("E001", f"{sentence}: the Python package {problem.name} is not installed", help=f"pip install 'tidec[compile]'{or_else}")) from problem


def _budget_bytes(gib: object) -> int:
    """Whole bytes of a budget in GiB. Raises P001 where it is no number, or less than a byte."""
    if isinstance(gib, bool) or not isinstance(gib, (int, float)) or not 1 <= gib * 2**30 < math.inf:
        raise TidecError(Diagnostic("P001", f"budget_gib={gib!r} is no size in GiB", reason="an arena of the model that is larger is refused",
                                    help="write a number above 0, for example 80, or leave it out"))
    return int(gib * 2**30)


def _deadline(seconds: object) -> float:
    """The deadline, a millisecond to 10^7 seconds. Raises P001 where it is none."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0.001 <= seconds <= MAX_DEADLINE_S:
        raise TidecError(Diagnostic("P001", f"deadline_s={seconds!r} is no time to wait", reason="a rank waits that many seconds for the others, then all stop",
                                    help=f"write a number from 0.001 to {MAX_DEADLINE_S:.0f}, or leave it out: {DEADLINE_S:.0f}"))
    return float(seconds)


def _target(name: str) -> str:
    """A target that runs under FSDP2. Raises P001 where there is none of that name, E004 where it does not run there."""
    if name != "auto" and name not in (row.name for row in TARGETS):
        raise TidecError(Diagnostic("P001", f"there is no target {quoted(name) if isinstance(name, str) else repr(name)}", help="one of: auto, host, nccl"))
    if name not in ("auto", "host", "nccl"):
        raise TidecError(Diagnostic("E004", f"target {name} under FSDP2 is not built yet", help="write target=\"host\" or target=\"nccl\", or leave it out"))
    return name
