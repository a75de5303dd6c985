"""`tidec explain`: what a code means, or what every plan of a model costs beside stock."""
from __future__ import annotations

import os
import re

from tidec.commands.answer import Answer
from tidec.commands.asking import Asked, read_asked
from tidec.commands.stock import spelt, stock_fields
from tidec.commands.tell import bytes_text, table
from tidec.errors import CODES, Diagnostic, Exit, TidecError
from tidec.inputs.ask import Ask, Collective, stock_cause
from tidec.inputs.signature import Group
from tidec.plan.cost import Cost, cost
from tidec.plan.layout import GroupLayout, lay_out
from tidec.plan.lower import lower

_CODE = re.compile(r"[A-Za-z][0-9]{3}")
_LAYOUT_FIELDS = ("shard_bytes", "landing_bytes", "pack_bytes", "pad_bytes", "zero_row_ranks", "unaligned16")
_COST_FIELDS = ("descriptors", "rounds", "waves", "arena_bytes", "staging_bytes")
_INCAST = "the all-gather is not paced: a node that runs ahead can send to a rail that still receives from another (incast)"


def run(*, what: str | None, topo: str | None, group: str | None, settings: tuple[str, ...], capability: str | None) -> Answer:
    """A code's page, or the costs of a bundle or of a topology and a model; `None` = not given."""
    if what is not None and (topo is not None or group is not None):
        raise TidecError(Diagnostic("P001", "explain takes a bundle or a code, or --topo and --group, not both", help="run tidec explain --help"))
    if what is not None and _CODE.fullmatch(what) and not os.path.exists(what):
        return _explain_code(what.upper())
    if what is not None:
        from tidec.commands.bundle import read_bundle

        return _explain_plans(read_bundle(what))
    if topo is None or group is None:
        raise TidecError(Diagnostic("P001", "explain needs a bundle, a code, or both --topo and --group", help="run tidec explain --help"))
    return _explain_plans(read_asked(topo=topo, group=group, settings=settings, capability=capability))


def _explain_code(code: str) -> Answer:
    if code not in CODES:
        raise TidecError(Diagnostic("P001", f"there is no code {code}", help=f"the codes are {', '.join(sorted(CODES))}"))
    page = CODES[code]
    fields = {"code": code, "name": page.name, "exit_code": page.exit.value, "page": page.page}
    return Answer(Exit.OK, fields, f"{code} {page.name}\n\n{page.page}\n\nA command that stops at it exits {page.exit.value}.")


def _explain_plans(asked: Asked) -> Answer:
    groups, layout_rows, cost_rows, known = [], [], [], {}
    for group in asked.signature.groups:
        entry: dict[str, object] = {"name": group.name, "repeat": group.repeat, "num_params": len(group.params)}
        layout = lay_out(group, asked.topology.ranks)
        entry.update((f, getattr(layout, f)) for f in _LAYOUT_FIELDS)
        layout_rows.append(_layout_row(group, layout))
        for collective in Collective:
            cause = stock_cause(group, collective)
            if cause is not None:
                entry[collective.value] = {"stock": stock_fields(cause)}
                cost_rows.append((group.name, spelt(collective), "stock", *[""] * 5))
                continue
            # Equal groups have equal plans: a model lists its block once a layer in some files.
            key = (group.params, group.param_dtype, collective)
            if key not in known:
                known[key] = cost(lower(Ask(asked.topology, group, asked.lowering, asked.knobs), collective))
            entry[collective.value] = {f: getattr(known[key], f) for f in _COST_FIELDS}
            cost_rows.append(_cost_row(group, collective, known[key], layout))
        groups.append(entry)
    notes = _remarks(asked)
    text = "\n".join((
        table(("group", "repeat", "params", "shard", "landing", "padding", "empty", "unaligned"), layout_rows, right=range(1, 8)), "",
        table(("group", "collective", "descriptors", "rounds", "waves", "arena", "staging", "stock's buffers"), cost_rows, right=range(2, 8)), "",
        *_LEGEND, *([""] if notes else []), *notes,
    ))
    return Answer(Exit.OK, {"topology": str(asked.topology), "lowering": asked.lowering.value, "groups": groups, "notes": notes}, text)


def _layout_row(group: Group, layout: GroupLayout) -> tuple[str, ...]:
    sizes = (layout.shard_bytes, layout.landing_bytes, layout.pad_bytes)
    return (group.name, str(group.repeat), str(len(group.params)), *map(bytes_text, sizes), str(layout.zero_row_ranks), str(layout.unaligned16))


def _cost_row(group: Group, collective: Collective, c: Cost, layout: GroupLayout) -> tuple[str, ...]:
    # What stock allocates beside what the job keeps: its rank-major gather buffer, and its fp32 pack.
    stock_bytes = layout.landing_bytes if collective is Collective.ALL_GATHER else layout.pack_bytes
    return (group.name, spelt(collective), f"{c.descriptors:,}", str(c.rounds), str(c.waves), *map(bytes_text, (c.arena_bytes, c.staging_bytes, stock_bytes)))


_LEGEND = (
    "shard: what a rank contributes.  landing: what every rank ends with, used where it lands.  padding: its bytes that belong to no row.",
    "empty: pairs of a parameter and a rank without a row of it.  unaligned: parameters that do not start at a multiple of 16 bytes.",
    "descriptors, rounds, waves: of rank 0 in one call.  arena: two landings, the shard and the staging.",
    "stock's buffers: the rank-major gather buffer that it copies out of, and what it packs in fp32 before it can reduce.",
)


def _remarks(asked: Asked) -> list[str]:
    remarks = []
    if asked.topology.nodes > 1 and not asked.knobs.pacing:
        remarks.append(f"unsafe: {_INCAST}")
    if asked.lowering.value == "nvls":
        remarks.append("nvls: sums are repeatable, not bit-equal to p2p: the switch adds in an order of its own")
    return remarks
