"""compile(): from what is asked to a bundle of proved plans. START READING HERE.

Each step is a function from one frozen type to the next, and stands in a room of its own:

    Ask       what is asked: a group on a topology, with its knobs       inputs/, size/
    Program   how it moves: a schedule, traced                           schedules/, schedule/
    Plan      what each rank does: every byte placed, still folded       plan/
    Report    why it is right, for every node count                      verify/
    Proved    a plan all of whose claims are proved                      verify/certificate.py
    Stepped   that both collectives go together in backward              verify/step.py
    Bundle    how it is spelt: C++, CUDA, plans and certificates         emit/
    Echo      that the compiled program issues what was proved           build/
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from tidec.build.compile import check_echo
from tidec.build.library import build_library, has_library
from tidec.cache.key import Cache
from tidec.cache.libraries import build_kept
from tidec.cache.store import keep_bundle
from tidec.emit.bundle import Bundle, write_bundle
from tidec.emit.manifest import EchoReport
from tidec.emit.place import check_free
from tidec.emit.render import render
from tidec.errors import Diagnostic, Level, TidecError, bytes_text
from tidec.inputs.ask import Ask, Collective, Mode, StockCause, stock_cause
from tidec.inputs.asked import asked_of
from tidec.inputs.capability import Lowering
from tidec.inputs.document import quoted
from tidec.inputs.knobs import NOTHING_SET, Knobs, Settings
from tidec.inputs.order import Order, default_order
from tidec.inputs.signature import Group, Signature, canonical_text
from tidec.inputs.topology import Topology
from tidec.plan.ir import Plan
from tidec.plan.lower import lower, schedule_call
from tidec.plan.model_arena import ModelArena, lay_model_arena, need_of
from tidec.schedule.catalog import traced
from tidec.schedule.program import Program
from tidec.schedule.program import digest as program_digest
from tidec.size.peak import System, held_by, peak
from tidec.size.solver import Choice, choose
from tidec.verify.budget import model_claims, premise_refusal
from tidec.verify.certificate import certify
from tidec.verify.obligation import Verdict
from tidec.verify.prove import NoStore, Report, Store, prove
from tidec.verify.step import Place, place_of, prove_step, step_of

DEFAULT_BUDGET_BYTES = 80 * 2**30
NO_STORE = NoStore()
Watch = Callable[[str, object], None]
Key = tuple[str, Collective]
Call = tuple[str, tuple[tuple[str, object], ...]]


@dataclass(frozen=True, slots=True)
class Planned:
    """A collective that has a proved plan."""

    plan: Plan
    report: Report


@dataclass(frozen=True, slots=True)
class Stepped:
    """That two programs, by digest, go together in a step of backward, with the next all-gather at that place."""

    gather: str
    reduce: str
    place: Place
    report: Report


@dataclass(frozen=True, slots=True)
class Compiled:
    """What came of every group of the file, in its order, and where the bundle is.

    choices: the knobs of each group, and what decided them.
    outcomes: for each group both collectives, in the order of `Collective`: a plan, or why the stock one stays.
    reports: one a class of programs.  steps: one a pair of them, an all-gather and a reduce-scatter.  arena: that of all groups together.  echo: `None` = the echo was not asked for.
    """

    groups: tuple[Group, ...]
    choices: tuple[Choice, ...]
    outcomes: tuple[tuple[Planned | StockCause, ...], ...]
    reports: tuple[Report, ...]
    steps: tuple[Stepped, ...]
    arena: ModelArena
    bundle: Bundle
    echo: EchoReport | None
    warnings: tuple[Diagnostic, ...]

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The distinct plans, in the order in which groups first have them."""
        return tuple({o.plan.digest: o.plan for row in self.outcomes for o in row if isinstance(o, Planned)}.values())


def compile(
    topology: Topology, signature: Signature, *, knobs: Knobs | Settings = NOTHING_SET, lowering: Lowering = Lowering.P2P, mode: Mode = Mode.IN_PLACE,
    out: Path | None = None, is_forced: bool = False, cache: Cache | None = None, store: Store = NO_STORE, budget_bytes: int | None = None,
    order: Order | None = None, is_echoed: bool = True, target: str | None = None, watch: Watch = lambda name, value: None,
) -> Compiled:
    """Plan, prove and emit both collectives of every group, and check the compiled echo against the plans.

    knobs: all of them, for every group; or what is set, and the solver chooses the rest group by group.
    out: the bundle's folder, absent or empty, or with `is_forced` a bundle; `None` = `<cache>/<bundle digest>/`, and then there must be a cache;
    a bundle that stands there is checked and used, and with `is_forced` replaced if somebody changed it.
    store: where proofs are kept by class.  budget_bytes: refuse an arena of the model that is larger; `None` = warn above 80 GiB.
    order: how a step uses the groups; `None` = as FSDP2 does by default.
    watch: is told what each step made, by name.
    Guaranteed: every plan of the bundle is proved, and with `is_echoed` the emitted program issues exactly its ops.
    Raises P005, P006, P013 for what cannot be planned; V101..V205, V901, V902 for claims that do not hold; V401, V402; V501; C001, C002, C003, E003.
    """
    assert out is not None or cache is not None
    if out is not None:
        check_free(out, is_forced=is_forced)

    # What is asked; equal groups ask the same, and are planned once.
    groups = asked_of(signature)
    choices = _choices(topology, groups, knobs, mode, budget_bytes)
    asks = tuple(Ask(topology, group, lowering, choice.knobs, mode) for group, choice in zip(groups, choices))
    own = asks[: len(signature.groups)]
    jobs: dict[Key, tuple[Ask, Collective]] = {}
    for ask in asks:
        for collective in Collective:
            if stock_cause(ask.group, collective) is None:
                jobs.setdefault(_key(ask, collective), (ask, collective))
    watch("ask", asks)
    watch("knobs", choices)

    # How it moves: one program a schedule and its arguments, for every node count.
    calls = {key: schedule_call(ask, collective) for key, (ask, collective) in jobs.items()}
    programs = {call: traced(call[0], topology.lanes, **dict(call[1])) for call in calls.values()}
    watch("program", tuple(programs.values()))

    # What each rank does.
    plans = {key: _named(lower(ask, collective), key, asks) for key, (ask, collective) in jobs.items()}
    watch("plan", tuple(plans.values()))
    arena = plan_arena(signature, [tuple(plans.get(_key(ask, collective)) for collective in Collective) for ask in own], mode=mode, order=order)
    watch("arena", arena)
    warnings = (*check_budget(arena, topology, signature, budget_bytes), *_check_padding(tuple(plans.values())))

    # Why it is right. A class of programs is proved once, whatever the groups and the node count.
    reports = {call: prove(program, with_premises=True, store=store) for call, program in programs.items()}
    watch("report", tuple(reports.values()))
    for key, plan in plans.items():
        if not plan.premises_hold:
            raise _premise_fails(programs[calls[key]], plan)
    proved = tuple(certify(plan, reports[calls[key]]) for key, plan in plans.items())
    watch("proved", proved)
    steps = _steps(programs, calls, mode, store)
    watch("step", steps)

    # How it is spelt, and whether the compiled program issues what was proved.
    sources = render(proved)
    watch("source", sources)
    echo = check_echo(sources, tuple(plans.values())) if is_echoed else None
    if echo is not None:
        watch("echo", echo)

    def write(folder: Path) -> Bundle:
        bundle = write_bundle(proved, asks=asks, out=folder, is_forced=is_forced, echo=echo, sources=sources)
        if target is not None and not (cache is not None and out is None and has_library(cache.folder / bundle.digest, target)):
            build_library(bundle.path, target)
        return bundle

    bundle = write(out) if out is not None else keep_bundle(cache, write, is_forced=is_forced)
    if target is not None:
        if cache is not None:
            # An entry of the cache that was built for another target only has no library for this one yet.
            bundle = replace(bundle, path=build_kept(cache, bundle.path, lambda folder: build_library(folder, target).is_new))
        watch("library", build_library(bundle.path, target))
    watch("bundle", bundle)

    def outcome(ask: Ask, collective: Collective) -> Planned | StockCause:
        key = _key(ask, collective)
        return Planned(plans[key], reports[calls[key]]) if key in plans else stock_cause(ask.group, collective)

    outcomes = tuple(tuple(outcome(ask, collective) for collective in Collective) for ask in own)
    return Compiled(signature.groups, choices[: len(own)], outcomes, tuple(reports.values()), steps, arena, bundle, echo, warnings)


def _choices(topology: Topology, groups: Sequence[Group], knobs: Knobs | Settings, mode: Mode, budget_bytes: int | None) -> tuple[Choice, ...]:
    """One a group; equal groups are decided once."""
    if isinstance(knobs, Knobs):
        return (Choice(knobs, ()),) * len(groups)
    found: dict[str, Choice] = {}
    for group in groups:
        text = canonical_text(group)
        if text not in found:
            found[text] = choose(topology, group, settings=knobs, mode=mode, budget_bytes=budget_bytes)
    return tuple(found[canonical_text(group)] for group in groups)


def _key(ask: Ask, collective: Collective) -> Key:
    """Equal for groups that have the same plan."""
    return canonical_text(ask.group), collective


def _named(plan: Plan, key: Key, asks: tuple[Ask, ...]) -> Plan:
    """The plan with the names of all groups that have it, in the file's order, each once."""
    return replace(plan, groups=tuple(dict.fromkeys(ask.group.name for ask in asks if _key(ask, key[1]) == key)))


def _steps(programs: Mapping[Call, Program], calls: Mapping[Key, Call], mode: Mode, store: Store) -> tuple[Stepped, ...]:
    """Every all-gather of the model with every reduce-scatter, since a group's next neighbour may be any other, proved to go together in a step.

    Raises V107, V201..V204 where they do not, V901, V902.
    """
    gathers, reduces = (tuple(dict.fromkeys(call for (_, own), call in calls.items() if own is collective)) for collective in Collective)
    found = []
    for gather, reduce in product(gathers, reduces):
        place = place_of(mode, dict(reduce[1])["n_out"])
        report = prove_step(step_of(programs[gather], programs[reduce], mode=mode, place=place), with_premises=True, store=store)
        bad = [c.diagnostic for c in report.claims if c.diagnostic is not None]
        if bad:
            raise TidecError(*bad)
        found.append(Stepped(program_digest(programs[gather]), program_digest(programs[reduce]), place, report))
    return tuple(found)


def plan_arena(signature: Signature, plans: Sequence[Sequence[Plan | None]], *, mode: Mode, order: Order | None = None) -> ModelArena:
    """The arena of a model, whose claims all hold.

    plans: of each group of the file, both collectives; `None` = it has no plan.  order: `None` = as FSDP2 makes a step by default.
    Raises P002 and P005 as `lay_model_arena`, V402 where a claim does not hold.
    """
    needs = tuple(need_of(*row) for row in plans)
    arena = lay_model_arena(default_order(signature) if order is None else order, needs, mode=mode)
    wrong = [c.diagnostic for c in model_claims(arena, needs) if c.verdict is not Verdict.PROVED and c.diagnostic is not None]
    if wrong:
        raise TidecError(*wrong)
    return arena


def check_budget(arena: ModelArena, topology: Topology, signature: Signature, budget_bytes: int | None) -> tuple[Diagnostic, ...]:
    """A warning about an arena above 80 GiB. Raises V401 where a budget was given and the arena is larger."""
    if arena.bytes <= (budget_bytes or DEFAULT_BUDGET_BYTES):
        return ()
    stock = peak(arena.order, tuple(held_by(group, ranks=topology.ranks) for group in signature.groups), System.STOCK)
    largest = max(arena.regions, key=lambda r: r.bytes)
    needed, budget = _told_apart(arena.bytes, budget_bytes or DEFAULT_BUDGET_BYTES)
    over = Diagnostic(
        "V401", f"the arena of {quoted(signature.source_name)} needs {needed}",
        reason=f"the budget is {budget}{'' if budget_bytes else ', as none was given'}; its largest region, {largest.name}, "
               f"takes {bytes_text(largest.bytes)}; stock FSDP2 takes {bytes_text(stock.unsharded + stock.packed)} for unsharded groups and packed gradients at its peak",
        help=f"shard smaller groups{', use --mode slot_reuse' if arena.mode is Mode.IN_PLACE else ''}, or set more passes (n_part); tidec explain{' without --budget' if budget_bytes else ''} shows what takes how much",
        level=Level.ERROR if budget_bytes else Level.WARNING)
    if budget_bytes:
        raise TidecError(over)
    return (over,)


def _check_padding(plans: tuple[Plan, ...]) -> tuple[Diagnostic, ...]:
    """Warnings about landings that are more than half padding."""
    return tuple(
        Diagnostic("P015", f"more than half of the landing of group {quoted(plan.groups[0])} is padding: "
                           f"{plan.layout.pad_bytes:,} of {plan.layout.landing_bytes:,} bytes",
                   reason=f"{plan.ranks} ranks share parameters that have fewer rows", help="shard it over fewer ranks, or leave the group to stock", level=Level.WARNING)
        for plan in plans if plan.collective is Collective.ALL_GATHER and 2 * plan.layout.pad_bytes > plan.layout.landing_bytes)


def _premise_fails(program: Program, plan: Plan) -> TidecError:
    """What goes wrong where the program's premises on M do not hold, with the example of this node count."""
    claims = prove(program, nodes=plan.nodes, first_only=True).claims
    return TidecError(*(c.diagnostic for c in claims if c.verdict is Verdict.REFUTED and c.diagnostic is not None), premise_refusal(plan))


def _told_apart(a: int, b: int) -> tuple[str, str]:
    """Two different sizes in words that differ."""
    told = (bytes_text(a), bytes_text(b))
    return told if told[0] != told[1] else (f"{a:,} bytes", f"{b:,} bytes")
