"""`tidec run`: a bundle's plans on made data, on a target, compared with the reference bit for bit."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tidec.cache.key import Cache
from tidec.commands.answer import Answer
from tidec.commands.asking import read_count, read_number, read_seconds
from tidec.commands.bundles import bundle_of, library_of
from tidec.commands.stock import spelt, stock_fields
from tidec.commands.tell import count_text, short, table
from tidec.emit.bundle import Bundle
from tidec.emit.manifest import Ctas
from tidec.emit.targets import target as check_target
from tidec.errors import Diagnostic, Exit, TidecError
from tidec.inputs.ask import Collective, StockCause
from tidec.inputs.document import quoted
from tidec.interpret.bits import Outputs, carry_out
from tidec.plan.ir import Plan
from tidec.run.compare import Difference, digest, first_difference, max_error_ulps
from tidec.run.environment import settings as environment_settings
from tidec.run.host import DEADLINE_S, HostJob, HostRun, run_host
from tidec.run.library import set_environment
from tidec.run.loopback import run_loopback
from tidec.run.made import Kind, make
from tidec.run.room import check_room, no_room

_DIGEST_SHOWN = 12
_MAX_CALLS, _MAX_SEED, _MAX_SEEDS = 1000, 2**31 - 1, 100_000


@dataclass(frozen=True, slots=True)
class Asking:
    """How plans are run. alpha: `None` = 1/N.  environment: of the processes of a job; `None` = this one's."""

    target: str
    calls: int
    seed: int
    seeds: int
    kind: Kind
    alpha: float | None
    accumulate: bool
    is_poisoned: bool
    deadline_s: float
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of one plan. difference: `None` = every bit is the reference's.  seconds: of the fastest seed, host only."""

    digest: str
    difference: Difference | None
    max_error_ulps: float
    seconds: float


def run(
    *, bundle: str | None, topo: str | None, group: str | None, settings: tuple[str, ...], capability: str | None, target: str, calls: str, seed: str, seeds: str,
    data: str, alpha: str | None, accumulate: bool, is_poisoned: bool, deadline: str | None, cache: Cache, environment: Mapping[str, str], mode: str | None = None,
) -> Answer:
    """Exit 0 where every plan gives the reference's bits, 1 where one does not or stops; a group that keeps a stock collective is only named.

    bundle: its folder; `None` = topo and group are compiled into the cache. The other `None`s = not given.
    environment: of the processes of a job, where plans on GPUs get what they need of it; what is set otherwise stays, and is told.
    """
    asking = _asking(target, calls, seed, seeds, data, alpha, accumulate, is_poisoned, deadline)
    row = check_target(asking.target)
    if not (row.has_library or row.name == "python"):
        raise TidecError(Diagnostic("P001", f"target {row.name} runs nothing", help="write --target python, host, loopback or nccl"))
    made = bundle_of(bundle=bundle, topo=topo, group=group, settings=settings, capability=capability, mode=mode, cache=cache,
                     target=asking.target if row.has_library else None, what="run")
    library = library_of(made.path, asking.target, cache) if row.has_library else None
    asking, warnings = _prepared(made, asking, environment)
    for plan in made.plans:
        check_room(plan, calls=asking.calls, is_shared=library is not None)
    ran = {stem: _run(plan, ctas, library, asking) for stem, plan, ctas in zip(made.stems, made.plans, made.ctas)}
    notes = tuple(str(_differs(asking, plan, ran[stem].difference)) for stem, plan in zip(made.stems, made.plans) if ran[stem].difference is not None)
    return Answer(Exit.REFUTED if notes else Exit.OK, _fields(made, ran, asking), _text(made, ran, asking), (*map(str, warnings), *notes))


def _prepared(made: Bundle, asking: Asking, environment: Mapping[str, str]) -> tuple[Asking, tuple[Diagnostic, ...]]:
    """With the environment that the plans need, and what is told of it: that of the processes, or of this one where all ranks are in it."""
    if asking.target == "loopback":
        return asking, set_environment(made)
    if asking.target != "nccl":
        return asking, ()
    found = environment_settings(made.environment, environment)
    return replace(asking, environment={**environment, **dict(found.values)}), found.notes


def _asking(
    target: str, calls: str, seed: str, seeds: str, data: str, alpha: str | None, accumulate: bool, is_poisoned: bool, deadline: str | None,
) -> Asking:
    kinds = {k.value: k for k in Kind}
    if data not in kinds:
        raise TidecError(Diagnostic("P001", f"there is no data {quoted(data)}", help=f"one of: {', '.join(kinds)}"))
    return Asking(
        target, read_count(calls, option="--calls", low=1, high=_MAX_CALLS), read_count(seed, option="--seed", low=0, high=_MAX_SEED),
        read_count(seeds, option="--seeds", low=1, high=_MAX_SEEDS), kinds[data], None if alpha is None else read_number(alpha, option="--alpha"), accumulate, is_poisoned,
        DEADLINE_S if deadline is None else read_seconds(deadline, option="--deadline"))


def _run(plan: Plan, ctas: Ctas, library: Path | None, asking: Asking) -> Ran:
    """What came of a plan. Raises E008 where memory is short on the way."""
    try:
        return _compared(plan, ctas, library, asking)
    except MemoryError as error:
        raise no_room(plan, asking.calls, f"memory, or what a limit leaves of it, is short on the way: {error}".removesuffix(": ")) from error


def _compared(plan: Plan, ctas: Ctas, library: Path | None, asking: Asking) -> Ran:
    alpha = 1.0 / plan.ranks if asking.alpha is None else asking.alpha
    given = make(plan, calls=asking.calls, kind=asking.kind, accumulate=asking.accumulate, is_poisoned=asking.is_poisoned)
    wanted = carry_out(plan, given, alpha=alpha, accumulate=asking.accumulate, is_poisoned=asking.is_poisoned)
    difference, got, seconds = None, wanted, 0.0
    for got, seconds in _gotten(plan, ctas, library, asking, given, alpha):
        difference = difference or first_difference(plan, got, wanted)
    return Ran(digest(plan, got), difference, max_error_ulps(plan, given, got, alpha=alpha, accumulate=asking.accumulate), seconds)


def _gotten(plan: Plan, ctas: Ctas, library: Path | None, asking: Asking, given: object, alpha: float) -> Iterator[tuple[Outputs, float]]:
    """What the target gives: of the host one output that all seeds share, as their digests say; of python one a seed."""
    if library is None:
        for seed in range(asking.seed, asking.seed + asking.seeds):
            yield carry_out(plan, given, alpha=alpha, accumulate=asking.accumulate, is_poisoned=asking.is_poisoned, seed=seed), 0.0
        return
    job = HostJob(library, plan, given, alpha=alpha, accumulate=asking.accumulate, is_poisoned=asking.is_poisoned, first_seed=asking.seed,
                  num_seeds=asking.seeds, deadline_s=asking.deadline_s, sum_ctas=ctas.sum, land_ctas=ctas.land, environment=asking.environment)
    ran = _carried_out(job, asking)
    yield ran.outputs, min(ran.seconds)
    other = next((i for i, d in enumerate(ran.digests) if d != ran.digests[-1]), None)
    if other is not None:
        yield _carried_out(replace(job, first_seed=asking.seed + other, num_seeds=1), asking).outputs, min(ran.seconds)


def _carried_out(job: HostJob, asking: Asking) -> HostRun:
    if asking.target == "loopback":
        return run_loopback(job)
    return run_host(replace(job, entry="tidec_node_run") if asking.target == "nccl" else job)


def _differs(asking: Asking, plan: Plan, d: Difference) -> Diagnostic:
    where = f"row {d.row}, column {d.column}" if d.row >= 0 else "padding"
    return Diagnostic("R002", f"target {asking.target} gives other bits than the reference in the {spelt(plan.collective)} of {quoted(plan.groups[0])}",
                      example=(f"call {d.call}, rank {d.rank // plan.lanes}.{d.rank % plan.lanes}, parameter {quoted(d.parameter)}, {where}: {d.got}, not {d.wanted}",),
                      help="report this plan: it must not be used on this target")


def _outcome(made: Bundle, found: str | StockCause, ran: dict[str, Ran], asking: Asking) -> dict[str, object]:
    if isinstance(found, StockCause):
        return {"stock": stock_fields(found)}
    r = ran[found]
    d = r.difference
    fields: dict[str, object] = {"bitwise_equal": d is None, "digest": r.digest, "max_error_ulps": round(r.max_error_ulps, 3), "calls": asking.calls}
    if d is not None:
        fields["first_difference"] = {"call": d.call, "rank": d.rank, "parameter": d.parameter, "row": d.row, "column": d.column, "got": d.got, "wanted": d.wanted}
    return fields


def _fields(made: Bundle, ran: dict[str, Ran], asking: Asking) -> dict[str, object]:
    groups = [
        {"name": g.name, "repeat": g.repeat, **{c.value: _outcome(made, found, ran, asking) for c, found in zip(Collective, (g.all_gather, g.reduce_scatter))}}
        for g in made.groups
    ]
    return {"target": asking.target, "groups": groups, "seeds": asking.seeds, "data": asking.kind.value, "accumulate": asking.accumulate,
            "poison": asking.is_poisoned, "bundle": str(made.path), "bundle_digest": made.digest}


def _text(made: Bundle, ran: dict[str, Ran], asking: Asking) -> str:
    rows = []
    for g in made.groups:
        name, repeat = short(g.name), str(g.repeat)
        for collective, found in zip(Collective, (g.all_gather, g.reduce_scatter)):
            if isinstance(found, StockCause):
                rows.append((name, repeat, spelt(collective), "stock", "", "", ""))
            else:
                r = ran[found]
                took = f"{1e3 * r.seconds / asking.calls:.3f} ms" if r.seconds else ""
                rows.append((name, repeat, spelt(collective), "equal" if r.difference is None else "DIFFERS", f"{r.max_error_ulps:.2f}", r.digest[:_DIGEST_SHOWN], took))
            name = repeat = ""
    head = f"target {asking.target}, {count_text(asking.calls, 'call')} in sequence, {count_text(asking.seeds, 'seed')}, {asking.kind.value}"
    return "\n".join((head, "", table(("group", "repeat", "collective", "bits", "ulps", "digest", "a call"), rows, right=(1, 4, 6))))
