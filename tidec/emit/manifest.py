"""What a bundle says about itself: the manifest and the ask, as canonical JSON.

Canonical: sorted keys, no spaces, ASCII, no floats, no path of a machine and no time. So equal inputs give equal bytes.
"""
from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidec.inputs.ask import Ask, Collective, StockCause, stock_cause
from tidec.inputs.knobs import MAX_CTAS, NAMES
from tidec.inputs.signature import Dtype, canonical_text
from tidec.inputs.topology import Topology
from tidec.plan.ir import Plan
from tidec.plan.layout import GroupLayout, lay_out

BUNDLE_SCHEMA, ASK_SCHEMA = "tidec.bundle/1", "tidec.ask/1"
# What every job that loads a bundle must have.
REQUIRES = {"nccl": "2.31.2", "compute_capability": "9.0", "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}}
# The class of what NCCL's host sends, and of what GPUs send: one that differs rides another priority, which may be lossy. Source: paper appendix G.
TRAFFIC_CLASSES = ("NCCL_IB_TC", "NCCL_GIN_IB_TC")
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class EchoReport:
    """What the compiled echo was compared on.

    ranks_covered: ranks of every plan.  steps: ops, over all plans, ranks and calls.  digest: sha256 of everything that it printed.
    """

    ranks_covered: int
    steps: int
    digest: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One group of the file. all_gather, reduce_scatter: the stem of its plan's files, or why the stock collective stays."""

    name: str
    repeat: int
    all_gather: str | StockCause
    reduce_scatter: str | StockCause


@dataclass(frozen=True, slots=True)
class Ctas:
    """CTAs of one launch of the kernels that sum and that land."""

    sum: int
    land: int


def ctas_of(groups: Sequence[Entry], knobs: Sequence[Mapping[str, object]], stems: Sequence[str]) -> tuple[Ctas, ...]:
    """One a plan: those of the first group that has it. knobs: of each group, as `ask.json` has them. Raises KeyError, StopIteration, ValueError."""
    def first(stem: str) -> Mapping[str, object]:
        return next(k for entry, k in zip(groups, knobs, strict=True) if stem in (entry.all_gather, entry.reduce_scatter))

    return tuple(Ctas(_count(first(stem)["ctas_sum"]), _count(first(stem)["ctas_land"])) for stem in stems)


def _count(value: object) -> int:
    if type(value) is not int or not 1 <= value <= MAX_CTAS:
        raise ValueError(f"{value!r} is no number of CTAs")
    return value


def entries(asks: Sequence[Ask], plans: Sequence[Plan], stems: Sequence[str]) -> tuple[Entry, ...]:
    """One entry a group, in order. Every group that is not stock must have its plan among `plans`."""
    moved = {}
    for ask in asks:
        for collective in Collective:
            if stock_cause(ask.group, collective) is None:
                g = ask.group
                moved[g, collective] = _moved(collective, lay_out(g, ask.topology.ranks), tuple(p.dtype for p in g.params), tuple(map(g.gathered_as, g.params)), g.landings)

    def found(ask: Ask, collective: Collective) -> str | StockCause:
        cause = stock_cause(ask.group, collective)
        if cause is not None:
            return cause
        # Groups that ask otherwise may move the same, as with other shapes of as many rows: each has a plan of its own, in the order of the groups.
        own = [s for s, p in zip(stems, plans) if p.collective is collective and _moved(collective, p.layout, p.stored, p.gathered, p.landings) == moved[ask.group, collective]]
        texts = list(dict.fromkeys(
            canonical_text(a.group) for a in asks if stock_cause(a.group, collective) is None and moved[a.group, collective] == moved[ask.group, collective]))
        assert len(own) == len(texts), (ask.group.name, collective, own)
        return own[texts.index(canonical_text(ask.group))]

    return tuple(Entry(a.group.name, a.group.repeat, found(a, Collective.ALL_GATHER), found(a, Collective.REDUCE_SCATTER)) for a in asks)


def _moved(collective: Collective, layout: GroupLayout, stored: tuple[Dtype, ...], gathered: tuple[Dtype, ...], landings: int) -> tuple[object, ...]:
    return layout, stored, gathered, landings if collective is Collective.ALL_GATHER else 0


def requires(topology: Topology) -> dict[str, object]:
    """What a job on that topology must have. The environment is what must be set before its first communicator is made."""
    known = topology.nic_traffic_class
    classes = {} if known is None else {name: str(known) for name in TRAFFIC_CLASSES}
    return {**REQUIRES, "environment": {**REQUIRES["environment"], **classes}}


def ask_json(asks: Sequence[Ask]) -> str:
    """Everything that was asked, and nothing that was derived. One topology, lowering and mode; knobs a group."""
    first = asks[0]
    assert all((a.topology, a.lowering, a.mode) == (first.topology, first.lowering, first.mode) for a in asks)
    topology = first.topology
    groups = [
        {"name": a.group.name, "repeat": a.group.repeat, "signature": json.loads(canonical_text(a.group)),
         "knobs": {name: _plain(getattr(a.knobs, name)) for name in NAMES}}
        for a in asks
    ]
    known = {} if topology.nic_traffic_class is None else {"nic_traffic_class": topology.nic_traffic_class}
    return canonical({
        "schema": ASK_SCHEMA, "lowering": first.lowering.value, "mode": first.mode.value, "groups": groups,
        "topology": {"nodes": topology.nodes, "lanes": topology.lanes, "rails": list(topology.rails), "multicast": topology.multicast, **known},
    })


def manifest_json(
    *, version: str, inputs_digest: str, topology: Topology, groups: Sequence[Entry], plans: Sequence[Plan], stems: Sequence[str], files: Mapping[str, bytes], echo: EchoReport | None,
) -> str:
    """The manifest. files: every other file of the bundle.  echo: `None` = the echo was not compared."""
    return canonical({
        "schema": BUNDLE_SCHEMA, "tidec_version": version, "inputs_digest": inputs_digest, "requires": requires(topology),
        "groups": [{"name": g.name, "repeat": g.repeat, "all_gather": _outcome(g.all_gather), "reduce_scatter": _outcome(g.reduce_scatter)} for g in groups],
        "plans": [
            {"stem": stem, "collective": p.collective.value, "digest": p.digest, "program_digest": p.program_digest, "groups": list(p.groups)}
            for p, stem in zip(plans, stems)
        ],
        "files": {name: {"sha256": sha256(data), "size": len(data)} for name, data in files.items()},
        "echo": {"checked": False} if echo is None else {"checked": True, "ranks": echo.ranks_covered, "steps": echo.steps, "digest": echo.digest},
    })


def _outcome(found: str | StockCause) -> dict[str, object]:
    if isinstance(found, str):
        return {"plan": found}
    return {"stock": {"code": "P012", "reason": found.reason, "parameter": found.parameter}}


def _plain(value: object) -> object:
    """A knob's value as JSON has it; the words of enums as text."""
    return value if isinstance(value, (int, str)) else str(value)


def canonical(value: object) -> str:
    """Canonical JSON; a float in it is refused."""
    assert not _has_float(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _has_float(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_float, value.values()))
    return any(map(_has_float, value)) if isinstance(value, (list, tuple)) else isinstance(value, float)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
