"""The bundle that a command runs, given or compiled into the cache, and its library for a target."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tidec.build.library import build_library, kept_library
from tidec.cache.key import Cache, prover_identity
from tidec.cache.libraries import build_kept
from tidec.emit.bundle import Bundle, read_bundle
from tidec.errors import Diagnostic, TidecError
from tidec.inputs.ask import Mode, read_mode
from tidec.inputs.capability import choose_lowering
from tidec.inputs.document import given_path
from tidec.inputs.knobs import read_settings
from tidec.inputs.signature import Group, Signature, load_groups
from tidec.inputs.topology import Topology, parse_topology

# Groups that stand in no file, made for that many ranks.
Made = Callable[[int], tuple[Group, ...]]


def bundle_of(
    *, bundle: str | None, topo: str | None, group: str | None, settings: tuple[str, ...], capability: str | None, mode: str | None, cache: Cache,
    target: str | None, what: str, made: Made | None = None, ways: str = "--topo and --group",
) -> Bundle:
    """The bundle in a folder, or one of these inputs, compiled into the cache, with its library.

    bundle: its folder, and then nothing else is given.  target: which library; `None` = none.  made: groups beside those of the file; `None` = none.
    what: it is done with a bundle, as messages say it.  ways: how inputs are given, as they say it.
    Raises P001 where both or neither is given, and what reading and compiling raise.
    """
    is_asked = settings or made is not None or any(x is not None for x in (topo, group, capability, mode))
    if bundle is not None and is_asked:
        raise TidecError(Diagnostic("P001", "a bundle is given, and inputs to compile too", help=f"give a bundle, or {ways}"))
    if bundle is not None:
        return read_bundle(given_path(bundle, what="the bundle"))
    if topo is None or (group is None and made is None):
        raise TidecError(Diagnostic("P001", f"nothing is given to {what}", help=f"give a bundle's folder, or {ways}"))
    # A bundle that is given is run without the prover's packages.
    from tidec.cache.proofs import open_proofs
    from tidec.pipeline import compile

    topology = parse_topology(topo)
    signature = _signature(topology, group, made)
    return compile(
        topology, signature, knobs=read_settings(settings, topology.lanes), lowering=choose_lowering(topology, capability),
        mode=Mode.IN_PLACE if mode is None else read_mode(mode), cache=cache, store=open_proofs(cache, prover_identity()), is_echoed=target is not None,
        target=target).bundle


def library_of(bundle: Path, target: str, cache: Cache) -> Path:
    """The library of a bundle: one that was built from the sources of this version, by any compiler; else one is built, in the cache aside, so that nobody sees half of it."""
    return kept_library(bundle, target) or build_library(build_kept(cache, bundle, lambda folder: build_library(folder, target).is_new), target).path


def _signature(topology: Topology, group: str | None, made: Made | None) -> Signature:
    if group is None:
        assert made is not None
        return Signature(made(topology.ranks), "made")
    signature = load_groups(group)
    return signature if made is None else replace(signature, groups=(*signature.groups, *made(topology.ranks)))
