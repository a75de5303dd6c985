"""tidec from Python: compile a bundle, load one. What the command line does with text and paths, without its cache, printing and exit codes."""
from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tidec import pipeline
from tidec.emit.bundle import Bundle, read_bundle
from tidec.inputs.capability import choose_lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Signature, load_groups
from tidec.inputs.topology import Topology, parse_topology


def compile(
    topo: str | Topology, group: str | os.PathLike[str] | Signature, *, out: str | os.PathLike[str], knobs: Mapping[str, int | str] = {},
    capability: str | None = None, is_forced: bool = False, is_echoed: bool = True,
) -> Bundle:
    """Plan, prove and emit both collectives of every group; the bundle is written to `out`.

    topo: "8x8" or a topology file.  group: a group file.  knobs: as in `--set`, for example {"W": 4, "n_out": "full"}.
    capability: "p2p" or "nvls"; `None` = what the topology says.  is_forced: a bundle that stands at `out` is replaced.
    Guaranteed: every plan of the bundle is proved, and with `is_echoed` the compiled program issues exactly its ops.
    Raises TidecError with the diagnostics that the command would print.
    """
    topology = topo if isinstance(topo, Topology) else parse_topology(topo)
    signature = group if isinstance(group, Signature) else load_groups(os.fspath(group))
    settings = tuple(f"{name}={value}" for name, value in knobs.items())
    return pipeline.compile(
        topology, signature, knobs=parse_knobs(settings, topology.lanes, nodes=topology.nodes), lowering=choose_lowering(topology, capability),
        out=Path(out), is_forced=is_forced, is_echoed=is_echoed,
    ).bundle


def load(path: str | os.PathLike[str]) -> Bundle:
    """The bundle at `path`, every digest checked; `load(path).plans[i].steps(rank)` iterates the ops of a rank. Raises C001."""
    return read_bundle(Path(path))
