"""`tidec compile`: plan, prove and emit both collectives of every group of a model."""
from __future__ import annotations

import time

from tidec.cache.key import Cache, prover_identity
from tidec.cache.proofs import ProofStore, open_proofs
from tidec.commands.answer import Answer
from tidec.commands.asking import Asked, read_asked, read_budget
from tidec.commands.dump import Dump
from tidec.commands.memory import arena_fields, arena_text, mode_text
from tidec.commands.sizing import choice_fields
from tidec.commands.stock import spelt, stock_fields, stock_notes, stock_summary
from tidec.commands.tell import count_text, short, table
from tidec.emit.targets import target as check_target
from tidec.errors import Diagnostic, Exit, TidecError, bytes_text
from tidec.inputs.ask import Collective, read_mode
from tidec.inputs.document import given_path
from tidec.inputs.order import load_order
from tidec.pipeline import NO_STORE, Compiled, Planned, compile
from tidec.verify.step import Place

_DIGEST_SHOWN = 12


class _Clock:
    """A `watch` that takes the time between two steps, and hands what it is told on."""

    def __init__(self, dump: Dump | None):
        self.seconds: dict[str, float] = {}
        self._dump, self._last = dump, time.perf_counter()

    def __call__(self, name: str, value: object) -> None:
        self.seconds[name] = time.perf_counter() - self._last
        if self._dump is not None:
            self._dump(name, value)
        self._last = time.perf_counter()


def run(
    *, topo: str, group: str, settings: tuple[str, ...], capability: str | None, mode: str, budget: str | None, target: str | None, is_stock_ok: bool,
    is_echoed: bool, out: str | None, is_forced: bool, dump: str | None, cache: Cache | None, order: str | None = None,
) -> Answer:
    """Exit 0 where everything is proved, 4 where a group keeps a stock collective and that is not said to be fine.

    cache: `None` = neither proofs nor the bundle are kept there; the other `None`s = not given.
    """
    start = time.perf_counter()
    has_library = target is not None and check_target(target).has_library
    if cache is None and out is None:
        raise TidecError(Diagnostic("P001", "with --no-cache the bundle has no place", help="say where it goes with -o DIR"))
    place = None if out is None else given_path(out, what="-o")
    kept = None if dump is None else given_path(dump, what="--dump")
    asked = read_asked(topo=topo, group=group, settings=settings, capability=capability)
    read = read_mode(mode)
    budget_bytes = None if budget is None else read_budget(budget)
    recorded = None if order is None else load_order(order, asked.signature)
    store = NO_STORE if cache is None else open_proofs(cache, prover_identity())
    clock = _Clock(None if kept is None else Dump(kept))
    compiled = compile(
        asked.topology, asked.signature, knobs=asked.settings, lowering=asked.lowering, mode=read, out=place, is_forced=is_forced,
        cache=cache, store=store, budget_bytes=budget_bytes, order=recorded, is_echoed=is_echoed,
        target=target if has_library else None, watch=clock)
    seconds = time.perf_counter() - start
    notes = (*map(str, compiled.warnings), *map(str, store.notes if isinstance(store, ProofStore) else ()), *stock_notes(asked.signature))
    stays = stock_summary(asked.signature.groups)
    parts = [_head(asked, compiled), "", _table(compiled), "", _arena(asked, compiled), "", *_account(compiled, clock, seconds), *([stays] if stays else []), str(compiled.bundle.path)]
    return Answer(Exit.STOCK if stays and not is_stock_ok else Exit.OK, _fields(asked, compiled, clock, seconds), "\n".join(parts), notes)


def _head(asked: Asked, compiled: Compiled) -> str:
    topology = asked.topology
    return ", ".join((f"{asked.signature.source_name} on {topology} ({count_text(topology.ranks, 'rank')})", asked.lowering.value, mode_text(compiled.arena.mode), *_knobs(compiled)))


def _knobs(compiled: Compiled) -> tuple[str, ...]:
    """The knobs of every reduce-scatter, each value once; stripes where a plan has more than one. Empty where nothing is reduced by a plan."""
    found = [dict(plan.knobs) for plan in compiled.plans if plan.collective is Collective.REDUCE_SCATTER]
    values = {name: tuple(dict.fromkeys(str(knobs[name]) for knobs in found)) for name in ("W", "k", "n_stg", "n_part", "n_out", "chunks", "stripes")}
    spelt_knobs = [f"{name}={'/'.join(own)}" for name, own in values.items() if own and not (name == "stripes" and own == ("1",))]
    return (" ".join(spelt_knobs),) if spelt_knobs else ()


def _table(compiled: Compiled) -> str:
    rows = []
    for group, outcomes in zip(compiled.groups, compiled.outcomes):
        name, repeat = short(group.name), str(group.repeat)
        for collective, o in zip(Collective, outcomes):
            if isinstance(o, Planned):
                rows.append((name, repeat, spelt(collective), f"{len(o.report.claims):,}", o.report.verdict.value, o.plan.digest[:_DIGEST_SHOWN], bytes_text(o.plan.arena.bytes)))
            else:
                rows.append((name, repeat, spelt(collective), "", "stock", "", ""))
            name = repeat = ""
    return table(("group", "repeat", "collective", "claims", "verdict", "plan", "arena"), rows, right=(1, 3, 6))


def _arena(asked: Asked, compiled: Compiled) -> str:
    return arena_text(compiled.arena, asked.signature, separate_bytes=_separate_bytes(compiled))


def _separate_bytes(compiled: Compiled) -> int:
    """What the arenas of all plans take, each by itself."""
    return sum(plan.arena.bytes for plan in compiled.plans)


def _account(compiled: Compiled, clock: _Clock, seconds: float) -> list[str]:
    reports = compiled.reports
    spent = ", ".join(f"{name} {t:.2f}" for name, t in clock.seconds.items() if t >= 0.005)
    took = f"{seconds:.2f} s" + (f" ({spent})" if spent else "")
    if not compiled.plans:
        return ["nothing is planned: every group keeps both stock collectives, and the bundle holds only the reasons", took]
    claims = f"{sum(len(r.claims) for r in reports):,} claims"
    known = sum(r.from_store for r in reports)
    kept = f"; {'all' if known == len(reports) else known} known from the proof store" if known else ""
    each = ", each" if len(compiled.plans) > 1 else ","
    return [
        f"{count_text(len(compiled.plans), 'plan')} of {count_text(len(reports), 'program')}{each} proved for every node count{_condition(compiled)} ({claims}{kept})",
        *_steps_text(compiled),
        _echo_text(compiled),
        took,
    ]


def _steps_text(compiled: Compiled) -> list[str]:
    """A line a place: where the next all-gather of a step is issued, and what is proved of that."""
    lines = []
    for place in Place:
        steps = [s for s in compiled.steps if s.place is place]
        if steps:
            where = "ahead of the network phase" if place is Place.AHEAD else "behind the network phase"
            pairs = f" of {count_text(len(steps), 'pair')} of programs" if len(compiled.steps) > 1 else ""
            lines.append(f"the next all-gather{pairs} may be issued {where} ({sum(len(s.report.claims) for s in steps):,} claims across both collectives)")
    return lines


def _condition(compiled: Compiled) -> str:
    """The premises on M under which claims hold, as their scopes say them; "" where all hold for every node count."""
    found = dict.fromkeys(c.scope.partition(" with ")[2] for r in compiled.reports for c in r.claims)
    premises = [premise for premise in found if premise]
    return f" with {' and '.join(premises)}" if premises else ""


def _echo_text(compiled: Compiled) -> str:
    e = compiled.echo
    if e is None:
        return "echo not checked (--no-echo)"
    ranks = compiled.plans[0].ranks
    covered = f"{e.ranks_covered:,} of {ranks:,} ranks" if e.ranks_covered < ranks else f"{'all ' if ranks > 1 else ''}{count_text(ranks, 'rank')}"
    return f"the compiled echo equals the plans: {count_text(e.steps, 'step')} on {covered}"


def _fields(asked: Asked, compiled: Compiled, clock: _Clock, seconds: float) -> dict[str, object]:
    groups = []
    for group, outcomes in zip(compiled.groups, compiled.outcomes):
        entry: dict[str, object] = {"name": group.name, "repeat": group.repeat}
        for collective, o in zip(Collective, outcomes):
            entry[collective.value] = {
                "plan_digest": o.plan.digest, "program_digest": o.plan.program_digest, "verdict": o.report.verdict.value, "claims": dict(o.report.counts()),
                "arena_bytes": o.plan.arena.bytes,
            } if isinstance(o, Planned) else {"stock": stock_fields(o)}
        groups.append(entry)
    e = compiled.echo
    return {
        "topology": str(asked.topology), "lowering": asked.lowering.value, "groups": groups, "plans": len(compiled.plans), "proofs": len(compiled.reports),
        "proofs_from_store": sum(r.from_store for r in compiled.reports),
        "echo": {"checked": False} if e is None else {"checked": True, "ranks": e.ranks_covered, "steps": e.steps, "digest": e.digest},
        "steps": [{"place": s.place.value, "all_gather": s.gather, "reduce_scatter": s.reduce, "verdict": s.report.verdict.value,
                   "claims": dict(s.report.counts()), "from_store": s.report.from_store} for s in compiled.steps],
        "knobs": [choice_fields(choice) for choice in compiled.choices],
        "arena": arena_fields(compiled.arena, separate_bytes=_separate_bytes(compiled)),
        "warnings": [str(w) for w in compiled.warnings], "steps_seconds": {name: round(t, 4) for name, t in clock.seconds.items()}, "seconds": round(seconds, 3),
        "out": str(compiled.bundle.path), "bundle_digest": compiled.bundle.digest,
    }
