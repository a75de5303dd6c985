"""The memory of a model, told: its arena region by region, and what a rank holds beside stock."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tidec.commands.tell import count_text, short, table
from tidec.errors import bytes_text
from tidec.inputs.ask import Mode
from tidec.inputs.order import Order
from tidec.inputs.signature import Signature
from tidec.inputs.topology import Topology
from tidec.plan.model_arena import ModelArena, ModelRegion, Need
from tidec.size.peak import Held, Peak, System, backward_bytes, held_by, peak, system_of

_NAMES = {
    System.STOCK: "stock FSDP2", System.SYMMETRIC: "stock, symmetric memory", System.IN_PLACE: "tidec, in_place", System.SLOT_REUSE: "tidec, slot_reuse",
}
_COLUMNS = ("shards", "unsharded", "gradients", "packed", "arena")
_LEGEND = (
    "peak: of a rank, at the moment of a step in which it holds most.  shards: as they are stored.",
    "unsharded: gather buffers and parameters outside an arena.  packed: what stock packs gradients in to reduce them.",
    "gradients: as autograd makes them, of the group that backward is in, and in_place of the one before.",
    "arena: one for the model: landings and stages of all groups.",
    "a layer: live bytes during the backward of one of many layers, without its shards and its own gradients (paper 5.4).",
    "Reduced gradients, optimizer state and activations are the job's own. Stock's rows are lower bounds: without the moment",
    "of a copy out of a gather buffer, and without what its allocator, or the pool of symmetric memory, loses in pieces.",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One system. layer_bytes: live bytes during a layer's backward."""

    system: System
    peak: Peak
    layer_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Stock twice and every mode that was planned, and which group is the layer.

    num_apart: groups on a mesh of their own, which a file does not give the ranks of; they are counted as if all ranks shared them.
    """

    rows: tuple[Row, ...]
    layer: str
    order: Order
    num_apart: int


def memory_of(signature: Signature, topology: Topology, arenas: Sequence[ModelArena], needs: Sequence[Sequence[Need]]) -> Memory:
    """What a rank holds in each system, from the arena of each mode and what its groups need; arenas of one order."""
    held = tuple(held_by(group, ranks=topology.ranks) for group in signature.groups)
    order = arenas[0].order
    layer = max(range(len(held)), key=lambda i: (signature.groups[i].repeat * held[i].landing_bytes, -i))
    rows = [Row(s, peak(order, held, s), backward_bytes(s, held[layer], gather_stage_bytes=0, reduce_stage_bytes=0)) for s in (System.STOCK, System.SYMMETRIC)]
    for arena, need in zip(arenas, needs):
        system = system_of(arena.mode)
        rows.append(Row(system, peak(order, held, system, arena_bytes=arena.bytes), _layer_bytes(system, held[layer], need[layer])))
    return Memory(tuple(rows), signature.groups[layer].name, order, sum(g.repeat for g in signature.groups if g.mesh))


def _layer_bytes(system: System, held: Held, need: Need) -> int:
    """As `backward_bytes` where both collectives are planned; what is not is stock's."""
    staged = backward_bytes(system, held, gather_stage_bytes=need.gather_stage_bytes, reduce_stage_bytes=need.reduce_stage_bytes)
    return staged if held.has_reduce else 2 * held.landing_bytes + need.gather_stage_bytes + held.pack_bytes


def memory_text(memory: Memory) -> str:
    """The table, and what its columns mean."""
    stock = memory.rows[0].peak.total
    rows = []
    for row in memory.rows:
        cells = [bytes_text(value) if (value := getattr(row.peak, column)) else "" for column in _COLUMNS]
        rows.append((_NAMES[row.system], *cells, bytes_text(row.peak.total), against(row.peak.total, stock), bytes_text(row.layer_bytes)))
    head = ("memory", *_COLUMNS, "peak", "to stock", "a layer")
    apart = f"; {count_text(memory.num_apart, 'group')} on a mesh apart counted as if all ranks shared them" if memory.num_apart else ""
    about = f"the layer is {short(memory.layer)}; the order of use {order_text(memory.order)}{apart}"
    return "\n".join((table(head, rows, right=range(1, len(head))), about, "", *_LEGEND))


def memory_fields(memory: Memory) -> dict[str, object]:
    """For --json: `order`, `layer`, and one entry a system."""
    systems = [
        {"system": row.system.value, **{f"{column}_bytes": getattr(row.peak, column) for column in _COLUMNS}, "peak_bytes": row.peak.total,
         "layer_bytes": row.layer_bytes}
        for row in memory.rows
    ]
    return {"order": order_name(memory.order), "layer": memory.layer, "groups_apart": memory.num_apart, "systems": systems}


def against(count: int, stock: int) -> str:
    """How much more or less than stock: +1.90 GiB, -420 MiB."""
    return "" if count == stock else f"{'+' if count > stock else '-'}{bytes_text(abs(count - stock))}"


def order_name(order: Order) -> str:
    """For --json: the file's name, or "default"."""
    return order.origin or "default"


def order_text(order: Order) -> str:
    return f"is that of {order.origin}" if order.origin else "is FSDP2's by default (--order gives a recorded one)"


def mode_text(mode: Mode) -> str:
    """Where gradients lie while they are reduced."""
    return "gradients in place" if mode is Mode.IN_PLACE else "gradients in landings"


def arena_text(arena: ModelArena, signature: Signature, *, separate_bytes: int) -> str:
    """The arena of a model, a line a region. separate_bytes: of an arena a plan, all together."""
    if not arena.regions:
        return "arena of the model: none, nothing is planned"
    rows = [
        (r.name, f"{r.offset:,}", bytes_text(r.bytes), str(len(r.groups)), _groups_text(arena, r, signature), str(r.fences) if r.fences else "")
        for r in arena.regions
    ]
    return "\n".join((
        f"arena of the model: {bytes_text(arena.bytes)}, {mode_text(arena.mode)} (an arena a plan: {bytes_text(separate_bytes)})",
        f"the order of use {order_text(arena.order)}",
        table(("region", "offset", "bytes", "groups", "", "fences"), rows, right=(1, 2, 3, 5)),
    ))


def arena_fields(arena: ModelArena, *, separate_bytes: int) -> dict[str, object]:
    """For --json: bytes, and every region with its place and the groups that use it, by name and as [entry of the file, copy], since names may repeat."""
    groups = arena.order.groups
    regions = [
        {"name": r.name, "use": r.use.value, "offset": r.offset, "bytes": r.bytes, "groups": [groups[g].name for g in r.groups],
         "copies": [[groups[g].entry, groups[g].number] for g in r.groups], "fences": r.fences}
        for r in arena.regions
    ]
    return {"bytes": arena.bytes, "separate_bytes": separate_bytes, "mode": arena.mode.value, "order": order_name(arena.order), "ahead": arena.order.ahead,
            "regions": regions}


def _groups_text(arena: ModelArena, region: ModelRegion, signature: Signature) -> str:
    """Which groups use a region, copies counted: embed, block (40)."""
    counts = Counter(arena.order.groups[g].entry for g in region.groups)
    words = [short(signature.groups[entry].name) + (f" ({count})" if count > 1 else "") for entry, count in counts.items()]
    return ", ".join((*words[:3], *([f"{len(words) - 3} more"] if len(words) > 3 else [])))
