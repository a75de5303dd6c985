"""What was asked against what is there: every group of ask.json has the plans, and each plan the shapes, types, lowering and knobs, that it asks for.

Which groups keep a stock collective follows from their signatures, and is derived here again.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

from tidec.verify.recheck_files import MANIFEST, Files, is_digest, parsed, sha256
from tidec.verify.recheck_layout import ITEM_BYTES, Facts
from tidec.verify.recheck_words import tampered

ASK, ASK_SCHEMA, GROUP_SCHEMA = "ask.json", "tidec.ask/1", "tidec.group/1"
COLLECTIVES = ("all_gather", "reduce_scatter")
REQUIRES, CONNECTIONS = {"nccl": "2.31.2", "compute_capability": "9.0"}, {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
MAX_TRAINABLE, MAX_LANES, MAX_RANKS = 256, 72, 2**31 - 1
_MANIFEST_KEYS = {"schema", "tidec_version", "inputs_digest", "requires", "groups", "plans", "files", "echo"}
# Where a group has two landings, its signature does not say so.
_SIGNATURE = {"schema", "params", "reduce_dtype", "mesh"}
_TOPOLOGY = {"nodes", "lanes", "rails", "multicast"}
_SOURCES = (".hpp", ".cpp", ".cu", ".cuh")
_SLICE = 8
# What a knob may be, from least to most; a width is at most the lanes, an outbox may be full, and a cast and pacing are a yes or a no.
_KNOBS = {
    "k": (1, 32), "n_stg": (1, 8), "n_part": (1, 4), "n_out": (1, 2**31 - 1), "chunk_bytes": (0, 2**40), "chunks": (0, 256), "stripes": (1, 8),
    "ctas_sum": (1, 1024), "ctas_land": (1, 1024),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one plan must be. groups: the first group that has it, by which its shapes and knobs are known, and the names of all."""

    stem: str
    collective: str
    digest: str
    program_digest: str
    group: dict
    ask: dict


def check_ask(files: Files) -> tuple[Wanted, ...]:
    """The plans that the manifest lists, each with a group that asks for it. Raises C001."""
    manifest, listed = files.manifest, files.listed
    _need(manifest.keys() == _MANIFEST_KEYS and isinstance(manifest["tidec_version"], str), "it has not the fields of this version")
    _need(_is_echo(manifest["echo"], is_empty=not manifest["plans"]), "what it says of the echo is no such thing")
    _need(ASK in listed and sha256(listed[ASK]) == manifest["inputs_digest"], f"its inputs_digest is not the sha256 of {ASK}")
    ask = parsed(ASK, listed[ASK])
    _check_topology(ask)
    _need(manifest["requires"] == _required(ask["topology"]), f"what a job must have is not what the topology of {ASK} needs")
    stems, wanted = {}, {}
    for p in manifest["plans"]:
        _need(p.keys() == {"stem", "collective", "digest", "program_digest", "groups"} and is_digest(p["digest"]), "a plan is not listed as this version does")
        _need(p["stem"] not in stems and p["collective"] in COLLECTIVES, "a plan is listed twice, or of no collective")
        stems[p["stem"]] = p
    named: dict[str, list[str]] = {stem: [] for stem in stems}
    _need(len(manifest["groups"]) == len(ask["groups"]), f"it has not the groups of {ASK}")
    for said, group in zip(manifest["groups"], ask["groups"]):
        _check_group(group)
        _check_knobs(group["knobs"], ask["topology"]["lanes"])
        _need(said.keys() == {"name", "repeat", *COLLECTIVES} and (said["name"], said["repeat"]) == (group["name"], group["repeat"]), f"a group is not that of {ASK}")
        for collective in COLLECTIVES:
            stem = _planned(said[collective], group, collective)
            if not stem:
                continue
            _need(stem in stems and stems[stem]["collective"] == collective, f"group {group['name']:.40} names no plan of its {collective}")
            if group["name"] not in named[stem]:
                named[stem].append(group["name"])
            first = wanted.setdefault(stem, Wanted(stem, collective, stems[stem]["digest"], stems[stem]["program_digest"], group, ask))
            _need((first.group["signature"], first.group["knobs"]) == (group["signature"], group["knobs"]), f"groups that differ share the plan {stem}")
    _need(all(p["groups"] == named[stem] and named[stem] for stem, p in stems.items()), "a plan is listed for other groups than those that have it")
    _check_names(set(listed), set(stems))
    _check_module(manifest["plans"], ask["topology"], listed["module.cpp"].decode("ascii", "replace"))
    return tuple(wanted[stem] for stem in stems)


def _required(topology: dict) -> dict:
    """What a job must have; a traffic class holds for both who send over rails, the host and the GPU."""
    known = topology.get("nic_traffic_class")
    return {**REQUIRES, "environment": {**CONNECTIONS, **({} if known is None else dict.fromkeys(("NCCL_IB_TC", "NCCL_GIN_IB_TC"), str(known)))}}


def _check_names(listed: set[str], stems: set[str]) -> None:
    """Every plan has its three files, and there is nothing beside them but the ask and sources."""
    own = {f"{stem}.{end}" for stem in stems for end in ("plan.json", "cert.json", "hpp")} | {ASK, "tables.hpp", "module.cpp"}
    for name in sorted(own - listed):
        raise tampered(name, f"{MANIFEST} does not list it")
    for name in sorted(listed - own):
        if not name.endswith(_SOURCES) or name.endswith((".ag.hpp", ".rs.hpp")):
            raise tampered(name, "no plan has such a file")


def _check_module(plans: list, topology: dict, text: str) -> None:
    """The sources' table of programs names the plans by their digests, in this order."""
    at = 0
    for p in plans:
        row = f'{{"{p["stem"]}", "{p["digest"]}", {topology["nodes"]}, {topology["lanes"]},'
        at = text.find(row, at)
        if at < 0:
            raise tampered("module.cpp", f"it has no program for {p['stem']}.plan.json")


def _is_class(value: object) -> bool:
    return type(value) is int and 0 <= value <= 255


def _check_topology(ask: dict) -> None:
    topology = ask["topology"]
    nodes, lanes = topology["nodes"], topology["lanes"]
    fits = (
        ask.keys() == {"schema", "lowering", "mode", "groups", "topology"} and ask["schema"] == ASK_SCHEMA and ask["lowering"] in ("p2p", "nvls")
        and ask["mode"] in ("in_place", "slot_reuse") and topology.keys() in (_TOPOLOGY, _TOPOLOGY | {"nic_traffic_class"}) and type(topology["multicast"]) is bool
        and type(nodes) is type(lanes) is int and 1 <= nodes and 1 <= lanes <= MAX_LANES and nodes * lanes <= MAX_RANKS
        and len(topology["rails"]) == lanes and all(type(rail) is int and 0 <= rail <= 65535 for rail in topology["rails"]) and bool(ask["groups"])
        and _is_class(topology.get("nic_traffic_class", 0))
    )
    if not fits:
        raise tampered(ASK, "it asks for nothing that this version plans")


def _check_group(group: dict) -> None:
    signature = group["signature"]
    fits = (
        group.keys() == {"name", "repeat", "signature", "knobs"} and signature.keys() in (_SIGNATURE, _SIGNATURE | {"landings"})
        and (type(signature.get("landings", 1)), signature.get("landings", 1)) == (int, 1)
        and signature["schema"] == GROUP_SCHEMA and type(group["repeat"]) is int and group["repeat"] >= 1 and isinstance(group["name"], str)
        and bool(signature["params"]) and all(_is_param(p) for p in signature["params"]) and signature["reduce_dtype"] in ITEM_BYTES
    )
    if not fits:
        raise tampered(ASK, "a group in it has no signature")


def _check_knobs(knobs: dict, lanes: int) -> None:
    """Every knob is there and is one that this version builds, those too that no plan is made of, such as CTAs."""
    fits = knobs.keys() == {"W", "cast", "pacing", *_KNOBS} and type(knobs["cast"]) is bool and knobs["pacing"] is False
    for name, (low, high) in (*_KNOBS.items(), ("W", (1, lanes))):
        fits = fits and ((name, knobs[name]) == ("n_out", "full") or (type(knobs[name]) is int and low <= knobs[name] <= high))
    if not fits:
        raise tampered(ASK, "the knobs of a group in it are none that this version has")


def _is_param(p: dict) -> bool:
    return (
        p.keys() == {"name", "shape", "dtype", "gathered_as", "requires_grad", "shard_dim"} and {p["dtype"], p["gathered_as"]} <= ITEM_BYTES.keys()
        and type(p["requires_grad"]) is bool and type(p["shard_dim"]) is int and bool(p["shape"]) and all(type(d) is int and d >= 0 for d in p["shape"])
    )


def _planned(outcome: dict, group: dict, collective: str) -> str:
    """The stem of a collective's plan, "" where the stock one stays as it must."""
    signature = group["signature"]
    if _is_stock(signature, collective):
        stock = outcome.get("stock", {})
        names = {"", *(p["name"] for p in signature["params"])}
        _need(outcome.keys() == {"stock"} and stock.keys() == {"code", "reason", "parameter"} and stock["code"] == "P012" and stock["parameter"] in names,
              f"group {group['name']:.40} keeps the stock {collective}, and it does not say so")
        return ""
    _need(outcome.keys() == {"plan"}, f"group {group['name']:.40} has no plan of its {collective}")
    return outcome["plan"]


def _is_stock(signature: dict, collective: str) -> bool:
    """Whether FSDP2's own collective stays. Source: DESIGN section 8; paper section 2.5."""
    params = signature["params"]
    trainable = [p for p in params if p["requires_grad"]]
    both = (
        any(p["shard_dim"] for p in params) or len({p["dtype"] for p in trainable}) > 1 or len(trainable) > MAX_TRAINABLE or bool(signature["mesh"])
        or not any(map(_elems, params))
    )
    if both:
        return True
    if collective == "all_gather":
        return len({p["gathered_as"] for p in params}) > 1 or any("fp64" in (p["dtype"], p["gathered_as"]) and p["dtype"] != p["gathered_as"] for p in params)
    return not any(map(_elems, trainable)) or signature["reduce_dtype"] != "fp32" or any(p["gathered_as"] == "fp64" for p in trainable)


def _elems(p: dict) -> int:
    return math.prod(p["shape"])


def check_wanted(wanted: Wanted, plan: dict, facts: Facts) -> None:
    """A plan is the one that its group asks for: topology, lowering, shapes, types, knobs. Raises C001."""
    topology, knobs, lowering = wanted.ask["topology"], wanted.group["knobs"], wanted.ask["lowering"]
    has = (plan["collective"], facts.nodes, facts.lanes, plan["lowering"])
    if has != (wanted.collective, topology["nodes"], topology["lanes"], lowering):
        raise tampered(facts.file, f"it is for another collective, topology or lowering than {ASK} asks for")
    shapes = [(p["name"], p["shape"][0], math.prod(p["shape"][1:]), p["requires_grad"], p["dtype"], p["gathered_as"]) for p in wanted.group["signature"]["params"]]
    if shapes != [(p["name"], p["rows"], p["row_elems"], p["is_trainable"], p["stored"], p["gathered"]) for p in plan["params"]]:
        raise tampered(facts.file, f"its parameters are not those that {ASK} asks for")
    multicast = lowering == "nvls"
    if facts.is_gather:
        name, own = "tide_ag", {"cast": knobs["cast"], "multicast": multicast} | {k: x for k, x in wanted.group["signature"].items() if k == "landings"}
    else:
        name, own = "tide_rs", {key: knobs[key] for key in ("W", "k", "n_out", "n_part", "n_stg", "stripes")}
        own |= {"multicast": multicast, "chunks": _chunks(knobs, plan, facts)}
    if facts.program["name"] != name or facts.knobs != own or [type(facts.knobs[key]) for key in sorted(own)] != [type(own[key]) for key in sorted(own)]:
        raise tampered(facts.file, f"its schedule or its knobs are not those that {ASK} asks for")


def _chunks(knobs: dict, plan: dict, facts: Facts) -> int:
    """Chunks of a block: as many as are asked for or as chunk_bytes makes, rounded up to a multiple of the stripes."""
    count = max(1, knobs["chunks"])
    if knobs["chunk_bytes"]:
        item = facts.lanes * max(ITEM_BYTES[p["gathered"]] for p in plan["params"] if p["is_trainable"])
        elems = max(_SLICE, knobs["chunk_bytes"] // item // _SLICE * _SLICE)
        count = max(1, -(-plan["sub_slices"]["capacity_elems"] // elems))
    return -(-count // knobs["stripes"]) * knobs["stripes"]


def _is_echo(echo: dict, *, is_empty: bool) -> bool:
    """Whether that can be said of an echo. is_empty: the bundle has no plan, and then its echo has no step."""
    if echo == {"checked": False}:
        return echo["checked"] is False
    return (
        echo.keys() == {"checked", "ranks", "steps", "digest"} and echo["checked"] is True and type(echo["ranks"]) is type(echo["steps"]) is int
        and (echo["ranks"] == echo["steps"] == 0 if is_empty else echo["ranks"] >= 1 and echo["steps"] >= 1) and is_digest(echo["digest"])
    )


def _need(holds: bool, reason: str) -> None:
    if not holds:
        raise tampered(MANIFEST, reason)
