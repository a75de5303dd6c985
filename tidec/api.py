"""tidec from Python: compile a bundle, load one. What the command line does with text and paths, without its cache, printing and exit codes."""
from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from tidec.cache.folder import private_folder
from tidec.cache.key import prover_identity
from tidec.cache.proofs import open_proofs
from tidec.emit.bundle import Bundle, read_bundle
from tidec.errors import Diagnostic, TidecError
from tidec.inputs.ask import read_mode
from tidec.inputs.capability import choose_lowering
from tidec.inputs.document import given_path
from tidec.inputs.knobs import read_settings
from tidec.inputs.signature import Signature, load_groups
from tidec.inputs.topology import Topology, parse_topology

if TYPE_CHECKING:
    from tidec.run.fsdp import Installed, Module
    from tidec.run.report import Report


def compile(
    topo: str | Topology, group: str | os.PathLike[str] | Signature, *, out: str | os.PathLike[str], knobs: Mapping[str, int | str] = {},
    capability: str | None = None, mode: str = "in_place", is_forced: bool = False, is_echoed: bool = True,
) -> Bundle:
    """Plan, prove and emit both collectives of every group; the bundle is written to `out`.

    topo: "8x8" or a topology file.  group: a group file.  knobs: as in `--set`, for example {"W": 4, "n_out": "full"}.
    capability: "p2p" or "nvls"; `None` = what the topology says.  mode: "in_place" or "slot_reuse", as in `install`.
    is_forced: a bundle that stands at `out` is replaced.
    Guaranteed: every plan of the bundle is proved, and with `is_echoed` the compiled program issues exactly its ops.
    Raises TidecError with the diagnostics that the command would print.
    """
    topology = topo if isinstance(topo, Topology) else parse_topology(topo)
    signature = group if isinstance(group, Signature) else load_groups(os.fspath(group))
    settings = tuple(f"{name}={value}" for name, value in knobs.items())
    return _pipeline("a bundle cannot be made here", "").compile(
        topology, signature, knobs=read_settings(settings, topology.lanes), lowering=choose_lowering(topology, capability), mode=read_mode(mode),
        out=given_path(os.fspath(out), what="out"), is_forced=is_forced, is_echoed=is_echoed,
    ).bundle


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
    target: "host" moves parameters on the CPU, "nccl" those on GPUs of one node; "auto" = what each group needs.  require: a group that stays stock is an error.  deadline_s: how long a collective waits for another rank.
    poison: landings hold NaN once they are let go, so that a stale read shows.
    Guaranteed: on every rank the same groups run by plans; where it raises, nothing is changed. TIDEC_DISABLE=1 changes nothing at all.
    Raises the F codes (`tidec explain F010`).
    """
    from tidec.run.fsdp import install as install_model
    from tidec.run.fsdp import tell
    from tidec.run.library import is_disabled, is_required, kept_cache

    cache, notes = kept_cache()

    def provide(signature: Signature, topo: str, name: str) -> Path:
        topology = parse_topology(topo)
        pipeline = _pipeline("plans cannot be made here", ", or give a bundle: tidec.install(model, plans=PATH)")
        store = open_proofs(cache, prover_identity())
        return pipeline.compile(
            topology, signature, lowering=choose_lowering(topology, None), mode=read_mode(mode), cache=cache, store=store, target=name).bundle.path

    deadline_s = _deadline(deadline_s)
    made = install_model(model, plans=None if plans is None else given_path(os.fspath(plans), what="the bundle"), provide=provide, rt_folder=lambda: private_folder(cache.folder) / "rt",
                         target=_target(target), mode=read_mode(mode), is_required=require or is_required(), is_disabled=is_disabled(), deadline_s=deadline_s, is_poisoned=poison)
    tell(made, notes)
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


def _deadline(seconds: object) -> float:
    """The deadline, a millisecond to 10^7 seconds. Raises P001 where it is none."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0.001 <= seconds <= MAX_DEADLINE_S:
        raise TidecError(Diagnostic("P001", f"deadline_s={seconds!r} is no time to wait", reason="a rank waits that many seconds for the others, then all stop",
                                    help=f"write a number from 0.001 to {MAX_DEADLINE_S:.0f}, or leave it out: {DEADLINE_S:.0f}"))
    return float(seconds)


def _target(name: str) -> str:
    if name not in ("auto", "host", "nccl"):
        raise TidecError(Diagnostic("E004", f"target {name} under FSDP2 is not built yet", help="write target=\"host\" or target=\"nccl\", or leave it out"))
    return name
