"""`tidec explain`: what a code or a word means, or what every plan of a model or a bundle costs beside stock."""
from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tidec.commands.answer import Answer
from tidec.commands.asking import Asked, read_asked, read_budget
from tidec.commands.memory import Memory, arena_fields, memory_fields, memory_of, memory_text
from tidec.commands.sizing import choice_fields, choices_text, rates_text
from tidec.commands.stock import spelt, stock_fields
from tidec.commands.tell import short, table
from tidec.commands.words import page, words
from tidec.errors import CODES, Diagnostic, Exit, TidecError, bytes_text
from tidec.inputs.ask import Ask, Collective, Mode, StockCause, read_mode, stock_cause
from tidec.inputs.capability import Lowering
from tidec.inputs.document import nearest, quoted
from tidec.inputs.order import default_order, load_order
from tidec.inputs.asked import asked_of
from tidec.inputs.signature import Group, canonical_text
from tidec.inputs.topology import Topology
from tidec.plan.cost import Cost, cost
from tidec.plan.ir import Plan
from tidec.plan.layout import GroupLayout, lay_out
from tidec.pipeline import check_budget, plan_arena
from tidec.plan.lower import lower
from tidec.plan.model_arena import ModelArena, need_of
from tidec.size.solver import Choice, choose
from tidec.verify.budget import plan_claims

_CODE = re.compile(r"[A-Za-z][0-9]{3}")
_LAYOUT_FIELDS = ("shard_bytes", "landing_bytes", "pack_bytes", "pad_bytes", "zero_row_ranks", "unaligned16")
_COST_FIELDS = ("descriptors", "rounds", "waves", "arena_bytes", "staging_bytes")
_INCAST = "the all-gather is not paced: a node that runs ahead can send to a rail that still receives from another (incast)"
_LEGEND = (
    "shard: what a rank contributes.  landing: what every rank ends with, used where it lands.",
    "padding: bytes of the landing that belong to no row.  empty: pairs of a parameter and a rank without a row of it.",
    "unaligned: parameters that do not start at a multiple of 16 bytes.  descriptors, rounds, waves: of rank 0 in one call.",
    "staging: the part of the arena that is neither landing nor shard.",
    "arena: what a rank allocates for the plan, as if the row were alone. All-gather: two landings (a group in use, the next",
    "  one arriving; one where the group file says so), the shard where nothing is cast, and the staging. Reduce-scatter: the staging.",
    "stock: what FSDP2 allocates to do the same. All-gather: two unsharded groups and the rank-major gather buffer that it",
    "  copies out of; its shards, which it stores too, are not counted. Reduce-scatter: the buffer that it packs gradients",
    "  in, in fp32, as these plans reduce; with reduce_dtype bf16 it is half of that.",
    "Gradients and the output are the job's own on both sides.",
)


@dataclass(frozen=True, slots=True)
class _Row:
    """A group, its layout (`None` = it has no plan in the bundle, which then knows no layout), and what became of both collectives."""

    name: str
    repeat: int
    layout: GroupLayout | None
    outcomes: tuple[Cost | StockCause, ...]


@dataclass(frozen=True, slots=True)
class _Model:
    """What is known of a model and not of a bundle, which does not say how a step uses its groups, or what decided its knobs.

    memory: in all modes that the order allows.  arena: in the mode that is explained.  separate_bytes: what an arena a plan would take.  choices: one a group.
    refusals: why another mode than the explained one has no row.  warnings: about an arena that is large, where no budget was given.
    """

    topology: Topology
    memory: Memory
    arena: ModelArena
    separate_bytes: int
    choices: tuple[Choice, ...]
    refusals: tuple[str, ...]
    warnings: tuple[Diagnostic, ...]


@dataclass(frozen=True, slots=True)
class _Explained:
    """All rows of a model, and what the remarks depend on. model: `None` = of a bundle."""

    nodes: int
    lanes: int
    lowering: Lowering
    rows: tuple[_Row, ...]
    model: _Model | None = None


def run(
    *, what: str | None, topo: str | None, group: str | None, settings: tuple[str, ...], capability: str | None, mode: str | None = None,
    order: str | None = None, budget: str | None = None,
) -> Answer:
    """The page of a code, a knob or a word, or the costs of a bundle or of a topology and a model; `None` = not given."""
    if what is not None and (topo is not None or group is not None or settings or any(x is not None for x in (capability, mode, order, budget))):
        raise TidecError(Diagnostic("P001", "explain takes a bundle, a code or a word, or --topo and --group, not both",
                                    reason="--set, --capability, --mode, --budget and --order go with --topo and --group", help="run tidec explain --help"))
    if what is not None and _CODE.fullmatch(what) and not os.path.exists(what):
        return _explain_code(what.upper())
    if what is not None and not os.path.lexists(what) and os.path.basename(what) == what:
        return _explain_word(what)
    if what is not None:
        return _told(_of_bundle(Path(what)))
    if topo is None or group is None:
        raise TidecError(Diagnostic("P001", "explain needs a bundle, a code, a word, or both --topo and --group", help="run tidec explain --help"))
    return _told(_of_model(topo, group, settings, capability, Mode.IN_PLACE if mode is None else read_mode(mode), order, None if budget is None else read_budget(budget)))


def _explain_code(code: str) -> Answer:
    if code not in CODES:
        raise TidecError(Diagnostic("P001", f"there is no code {code}", help="a code is a letter and three digits, as messages show it: V104"))
    found = CODES[code]
    fields = {"code": code, "name": found.name, "exit_code": found.exit.value, "page": found.page}
    return Answer(Exit.OK, fields, f"{code} {found.name}\n\n{_wrapped(found.page)}\n\nA command that stops at it exits {found.exit.value}.")


def _explain_word(word: str) -> Answer:
    title, text = page(word)
    if not title:
        raise TidecError(Diagnostic("P001", f"{quoted(word)} is no bundle, no code, no knob and no word of the glossary",
                                    help=f"did you mean {nearest(word, words())}?  README has the glossary"))
    return Answer(Exit.OK, {"word": title, "page": text}, f"{title}\n\n{_wrapped(text)}")


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, 110))


def _of_model(topo: str, group: str, settings: tuple[str, ...], capability: str | None, mode: Mode, order: str | None, budget_bytes: int | None) -> _Explained:
    asked = read_asked(topo=topo, group=group, settings=settings, capability=capability)
    used = default_order(asked.signature) if order is None else load_order(order, asked.signature)
    groups = asked_of(asked.signature)[: len(asked.signature.groups)]
    choices = {m: [choose(asked.topology, g, settings=asked.settings, mode=m, budget_bytes=budget_bytes) for g in groups] for m in Mode}
    planned = {m: _planned(asked, groups, m, choices[m]) for m in Mode}
    plans = {m: [tuple(o if isinstance(o, Plan) else None for o in row) for row in rows] for m, rows in planned.items()}
    arenas: dict[Mode, ModelArena] = {}
    refusals = []
    for m in Mode:
        try:
            arenas[m] = plan_arena(asked.signature, plans[m], mode=m, order=used)
        except TidecError as error:
            if m is mode or error.diagnostics[0].code != "P002":
                raise
            refusals.append(f"{m.value}: not with this order: {error.diagnostics[0].sentence}")
    warnings = check_budget(arenas[mode], asked.topology, asked.signature, budget_bytes)
    memory = memory_of(asked.signature, asked.topology, tuple(arenas.values()), [[need_of(*row) for row in plans[m]] for m in arenas])
    costs: dict[str, Cost] = {}
    for plan in (o for row in planned[mode] for o in row if isinstance(o, Plan)):
        if plan.digest not in costs:
            costs[plan.digest] = cost(plan)
    rows = tuple(
        _Row(g.name, g.repeat, lay_out(g, asked.topology.ranks), tuple(costs[o.digest] if isinstance(o, Plan) else o for o in row))
        for g, row in zip(groups, planned[mode]))
    return _Explained(
        asked.topology.nodes, asked.topology.lanes, asked.lowering, rows,
        _Model(asked.topology, memory, arenas[mode], sum(c.arena_bytes for c in costs.values()), tuple(choices[mode]), tuple(refusals), warnings))


def _planned(asked: Asked, groups: Sequence[Group], mode: Mode, choices: Sequence[Choice]) -> list[tuple[Plan | StockCause, ...]]:
    """Both collectives of every group in a mode; equal groups have one plan."""
    known: dict[str, tuple[Plan | StockCause, ...]] = {}
    for g, choice in zip(groups, choices):
        text = canonical_text(g)
        if text not in known:
            ask = Ask(asked.topology, g, asked.lowering, choice.knobs, mode)
            known[text] = tuple(stock_cause(g, collective) or _admitted(lower(ask, collective)) for collective in Collective)
    return [known[canonical_text(g)] for g in groups]


def _admitted(plan: Plan) -> Plan:
    """The plan, which must be one that compile can accept: its node count is as its schedule's premises want it. Raises P013."""
    if not plan.premises_hold:
        raise TidecError(*(c.diagnostic for c in plan_claims(plan) if c.code == "P013" and c.diagnostic is not None))
    return plan


def _of_bundle(folder: Path) -> _Explained:
    from tidec.emit.bundle import read_bundle

    bundle = read_bundle(folder)
    plans = dict(zip(bundle.stems, bundle.plans))
    if not plans:
        raise TidecError(Diagnostic("P001", f"{folder} holds no plan", reason="all of its groups keep their stock collectives", help="tidec why-not says why"))
    costs = {stem: cost(plan) for stem, plan in plans.items()}
    rows = []
    for entry in bundle.groups:
        found = (entry.all_gather, entry.reduce_scatter)
        layout = next((plans[f].layout for f in found if isinstance(f, str)), None)
        rows.append(_Row(entry.name, entry.repeat, layout, tuple(costs[f] if isinstance(f, str) else f for f in found)))
    first = bundle.plans[0]
    return _Explained(first.nodes, first.lanes, first.lowering, tuple(rows))


def _told(e: _Explained) -> Answer:
    layout_rows, cost_rows = [], []
    for row in e.rows:
        layout_rows.append((short(row.name), str(row.repeat), *_layout_cells(row.layout)))
        for collective, outcome in zip(Collective, row.outcomes):
            cost_rows.append((short(row.name), spelt(collective), *_cost_cells(collective, outcome, row.layout)))
    remarks = _remarks(e)
    text = "\n".join((
        table(("group", "repeat", "params", "shard", "landing", "padding", "empty", "unaligned"), layout_rows, right=range(1, 8)), "",
        table(("group", "collective", "descriptors", "rounds", "waves", "arena", "staging", "stock"), cost_rows, right=range(2, 8)), "",
        *_LEGEND, *([] if e.model is None else _model_parts(e.model, [row.name for row in e.rows])), *([""] if remarks else []), *remarks,
    ))
    fields = {"topology": f"{e.nodes}x{e.lanes}", "lowering": e.lowering.value, "groups": [_fields(row) for row in e.rows], "notes": remarks}
    if e.model is not None:
        fields |= {"memory": memory_fields(e.model.memory), "arena": arena_fields(e.model.arena, separate_bytes=e.model.separate_bytes),
                   "knobs": [choice_fields(choice) for choice in e.model.choices], "warnings": [str(w) for w in e.model.warnings]}
    return Answer(Exit.OK, fields, text, () if e.model is None else tuple(map(str, e.model.warnings)))


def _model_parts(model: _Model, names: Sequence[str]) -> list[str]:
    decided = choices_text(names, model.choices)
    parts = (memory_text(model.memory), decided, rates_text(model.topology) if decided else "")
    return [line for part in parts if part for line in ("", part)]


def _fields(row: _Row) -> dict[str, object]:
    entry: dict[str, object] = {"name": row.name, "repeat": row.repeat}
    if row.layout is not None:
        entry["num_params"] = len(row.layout.params)
        entry.update((f, getattr(row.layout, f)) for f in _LAYOUT_FIELDS)
    for collective, o in zip(Collective, row.outcomes):
        if isinstance(o, StockCause):
            entry[collective.value] = {"stock": stock_fields(o)}
        else:
            assert row.layout is not None, row.name
            entry[collective.value] = {**{f: getattr(o, f) for f in _COST_FIELDS}, "stock_bytes": _stock_bytes(collective, row.layout)}
    return entry


def _layout_cells(layout: GroupLayout | None) -> Sequence[str]:
    if layout is None:
        return [""] * 6
    sizes = (layout.shard_bytes, layout.landing_bytes, layout.pad_bytes)
    return (str(len(layout.params)), *map(bytes_text, sizes), str(layout.zero_row_ranks), str(layout.unaligned16))


def _cost_cells(collective: Collective, outcome: Cost | StockCause, layout: GroupLayout | None) -> Sequence[str]:
    if isinstance(outcome, StockCause) or layout is None:
        return ["stock", *[""] * 5]
    sizes = (outcome.arena_bytes, outcome.staging_bytes, _stock_bytes(collective, layout))
    return (f"{outcome.descriptors:,}", str(outcome.rounds), str(outcome.waves), *map(bytes_text, sizes))


def _stock_bytes(collective: Collective, layout: GroupLayout) -> int:
    """What stock allocates for the same: two unsharded groups and its gather buffer, each N*S bytes, or its pack in fp32."""
    return 3 * layout.landing_bytes if collective is Collective.ALL_GATHER else layout.pack_bytes


def _larger(e: _Explained) -> list[str]:
    """One line where reduce-scatters need more than stock's pack, with the largest of them."""
    found = [(o.arena_bytes, row.layout.pack_bytes, row.name) for row in e.rows for c, o in zip(Collective, row.outcomes)
             if c is Collective.REDUCE_SCATTER and isinstance(o, Cost) and row.layout is not None and o.arena_bytes > row.layout.pack_bytes]
    if not found:
        return []
    arena, pack, name = max(found)
    return [f"memory: the reduce-scatter of {len(found)} of {len(e.rows)} rows needs more than stock's pack, "
            f"most in {quoted(short(name))}: {bytes_text(arena)} against {bytes_text(pack)}"]


def _remarks(e: _Explained) -> list[str]:
    is_gathered = any(isinstance(row.outcomes[0], Cost) for row in e.rows)
    return [
        *_larger(e),
        *(() if e.model is None else e.model.refusals),
        *([f"unsafe: {_INCAST}"] if e.nodes > 1 and is_gathered else []),
        *(["nvls: sums are repeatable, not bit-equal to p2p: the switch adds in an order of its own"] if e.lowering is Lowering.NVLS else []),
    ]
