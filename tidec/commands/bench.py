"""`tidec bench`: a bundle's plans beside the stock collectives, measured in one run, with every bit compared.

The columns are those of nccl-tests. size: bytes that all ranks have together, the gathered parameters or one rank's gradients, padding counted. algbw: size over
time. busbw: algbw * (N - 1) / N, what a link carries at least. A time is the median over rounds of a call's on the slowest rank.
"""
from __future__ import annotations

import importlib.util
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tidec import __version__
from tidec.build.rt import build_rt
from tidec.build.toolchain import count_gpus, find_driver
from tidec.cache.folder import private_folder
from tidec.cache.key import Cache
from tidec.commands.answer import Answer
from tidec.commands.asking import read_count, read_seconds
from tidec.commands.bundles import bundle_of, library_of
from tidec.commands.stock import spelt, stock_fields
from tidec.commands.tell import count_text, short, table
from tidec.emit.bundle import Bundle
from tidec.emit.targets import target as check_target
from tidec.errors import Diagnostic, Exit, TidecError
from tidec.inputs.ask import Collective, StockCause
from tidec.inputs.document import given_path, quoted
from tidec.inputs.knobs import MAX_CTAS
from tidec.inputs.signature import Group
from tidec.inputs.synthetic import equal_groups, unequal_groups
from tidec.inputs.topology import parse_topology
from tidec.run.bench import Bench, BenchJob, Measure, Row, Side, run_bench
from tidec.run.environment import settings as environment_settings

_STOCK = {"host": "gloo", "nccl": "NCCL"}
_WAYS = "--topo and --group, --equal or --unequal"
_MAX_CALLS, _MAX_ROUNDS, _MAX_SEED = 1000, 1000, 2**31 - 1


@dataclass(frozen=True, slots=True)
class Asking:
    """What is measured, and how. collectives, groups: () = all.  ctas: () = as the bundle says."""

    target: str
    collectives: tuple[Collective, ...]
    groups: tuple[str, ...]
    ctas: tuple[int, ...]
    calls: int
    rounds: int
    seed: int
    deadline_s: float
    out: Path | None


def run(
    *, bundle: str | None, topo: str | None, group: str | None, equal: str | None, unequal: str | None, settings: tuple[str, ...], capability: str | None,
    mode: str | None, target: str, collective: str | None, groups: str | None, ctas: str | None, calls: str, rounds: str, seed: str, deadline: str, out: str | None,
    is_forced: bool, cache: Cache, environment: Mapping[str, str],
) -> Answer:
    """Exit 0 where every bit is right, 1 where one is not or a rank stops. A stock collective of the bundle is only named.

    bundle: its folder; `None` = the inputs are compiled into the cache. The other `None`s = not given.
    """
    asking = _asking(target, collective, groups, ctas, calls, rounds, seed, deadline, out, is_forced)
    for package in ("torch", "numpy"):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    def made(ranks: int) -> tuple[Group, ...]:
        return (*(() if equal is None else equal_groups(equal, ranks=ranks)), *(() if unequal is None else unequal_groups(unequal, ranks=ranks)))

    if bundle is None and topo is not None:
        # Before minutes of compiling for GPUs that are not there.
        _check_gpus(asking, parse_topology(topo).ranks)
    found = bundle_of(bundle=bundle, topo=topo, group=group, settings=settings, capability=capability, mode=mode, cache=cache, target=asking.target, what="measure",
                      made=None if equal is None and unequal is None else made, ways=_WAYS)
    measures = _measures(found, asking)
    plans = tuple(p for p in found.plans if p.digest in {m.plan for m in measures})
    ranks = plans[0].ranks
    _check_gpus(asking, ranks)
    rt = private_folder(cache.folder) / "rt"
    needed = environment_settings(found.environment, environment) if asking.target == "nccl" else None
    library = library_of(found.path, asking.target, cache)
    build_rt(rt)
    job = BenchJob(plans, library, rt, asking.target, measures, asking.calls, asking.rounds, asking.seed, asking.deadline_s,
                   {**environment, **dict(() if needed is None else needed.values)})
    bench = run_bench(job, watch=lambda so_far: None if asking.out is None else _write(asking.out, _fields(found, job, so_far)))
    fields = _fields(found, job, bench)
    differing = tuple(str(_differs(asking, row)) for row in bench.rows if row.difference is not None)
    notes = (*(() if needed is None else map(str, needed.notes)), *differing)
    return Answer(Exit.REFUTED if differing else Exit.OK, fields, _text(found, job, bench), notes)


def _asking(
    target: str, collective: str | None, groups: str | None, ctas: str | None, calls: str, rounds: str, seed: str, deadline: str, out: str | None, is_forced: bool,
) -> Asking:
    check_target(target)
    if target not in _STOCK:
        raise TidecError(Diagnostic("P001", f"target {target} is not measured", help=f"one of: {', '.join(_STOCK)}"))
    if ctas is not None and target != "nccl":
        raise TidecError(Diagnostic("P001", f"--ctas is given, and target {target} has no kernels", help="leave it out, or give --target nccl"))
    names = {spelt(c): c for c in Collective}
    if collective is not None and collective not in names:
        raise TidecError(Diagnostic("P001", f"there is no collective {quoted(collective)}", help=f"one of: {', '.join(names)}"))
    path = None if out is None else given_path(out, what="-o")
    if path is not None and os.path.lexists(path) and not is_forced:
        raise TidecError(Diagnostic("C002", f"{quoted(out)} exists", help="give -o another file, or --force to replace it"))
    if path is not None and not os.access(path.parent, os.W_OK):
        raise TidecError(Diagnostic("E003", f"{quoted(out)} cannot be written", reason="its folder is not there, or is read-only", help="give -o another place"))
    return Asking(
        target, () if collective is None else (names[collective],), () if groups is None else tuple(groups.split(",")),
        () if ctas is None else tuple(read_count(c, option="--ctas", low=1, high=MAX_CTAS) for c in ctas.split(",")),
        read_count(calls, option="--calls", low=1, high=_MAX_CALLS), read_count(rounds, option="--rounds", low=1, high=_MAX_ROUNDS),
        read_count(seed, option="--seed", low=0, high=_MAX_SEED), read_seconds(deadline, option="--deadline"), path)


def _check_gpus(asking: Asking, ranks: int) -> None:
    """Raises E006 where a rank would have no GPU."""
    gpus = count_gpus() if asking.target == "nccl" else ranks
    if gpus < ranks:
        raise TidecError(Diagnostic("E006", f"{count_text(ranks, 'rank')} need{'s' if ranks == 1 else ''} {count_text(ranks, 'GPU')}, and nvidia-smi lists {gpus}",
                                    help="run it on a machine with them, or give --target host"))


def _measures(found: Bundle, asking: Asking) -> tuple[Measure, ...]:
    """A line a plan and CTA count, in the order of the groups, all-gather first. Raises P001 where there is nothing to measure."""
    missing = [name for name in asking.groups if name not in {g.name for g in found.groups}]
    if missing:
        raise TidecError(Diagnostic("P001", f"there is no group {quoted(missing[0])}", help=f"one of: {', '.join(dict.fromkeys(g.name for g in found.groups))}"))
    by_stem = {stem: (plan, ctas) for stem, plan, ctas in zip(found.stems, found.plans, found.ctas)}
    measures: dict[tuple[str, int], Measure] = {}
    for g in found.groups:
        for collective, outcome in zip(Collective, (g.all_gather, g.reduce_scatter)):
            if isinstance(outcome, StockCause) or (asking.groups and g.name not in asking.groups) or (asking.collectives and collective not in asking.collectives):
                continue
            plan, own = by_stem[outcome]
            if plan.ranks < 2:
                raise TidecError(Diagnostic("P001", "one rank moves nothing to others", help="give two lanes or nodes, as in --topo 1x2"))
            is_summed = collective is Collective.REDUCE_SCATTER and asking.target == "nccl"
            for ctas in (asking.ctas or (own.sum,)) if is_summed else (0,):
                measures.setdefault((plan.digest, ctas), Measure(plan.digest, g.name, ctas))
    if not measures:
        raise TidecError(Diagnostic("P001", "nothing is measured: what is asked for has no plan", help="tidec why-not says what stays stock"))
    return tuple(measures.values())


def _differs(asking: Asking, row: Row) -> Diagnostic:
    d = row.difference
    assert d is not None
    where = f"row {d.row}, column {d.column}" if d.row >= 0 else "padding"
    return Diagnostic("R002", f"target {asking.target} gives other bits than {row.checked} in the {_spelt(row)} of {quoted(row.measure.group)}",
                      example=(f"rank {d.rank}, parameter {quoted(d.parameter)}, {where}: {d.got}, not {d.wanted}",), help="report this plan: it must not be used on this target")


def _spelt(row: Row) -> str:
    return spelt(Collective(row.collective))


def _write(path: Path, fields: Mapping[str, object]) -> None:
    text = json.dumps({"schema": "tidec.bench/1", **fields}, indent=1, ensure_ascii=True)
    try:
        path.write_text(text + "\n", encoding="ascii")
    except OSError as problem:
        raise TidecError(Diagnostic("E003", f"{path} cannot be written", reason=problem.strerror or str(problem), help="give -o another place")) from problem


# ---- what is told

def _fields(found: Bundle, job: BenchJob, bench: Bench) -> dict[str, object]:
    stock = [{"group": g.name, "collective": c.value, **stock_fields(cause)}
             for g in found.groups for c, cause in zip(Collective, (g.all_gather, g.reduce_scatter)) if isinstance(cause, StockCause)]
    return {
        "version": __version__, "bundle": str(found.path), "bundle_digest": found.digest, "target": job.target, "beside": _STOCK[job.target],
        "nodes": job.plans[0].nodes, "lanes": job.plans[0].lanes, "calls": job.calls, "rounds": job.rounds, "seed": job.seed,
        "machine": {**asdict(bench.machine), "driver": _driver(job), "machine": platform.machine()}, "rows": [_row_fields(row, job) for row in bench.rows], "stock": stock}


def _row_fields(row: Row, job: BenchJob) -> dict[str, object]:
    return {
        "group": row.measure.group, "collective": row.collective, "target": job.target, "plan_digest": row.measure.plan, "size_bytes": row.size_bytes, "dtype": row.dtype, "ctas": row.measure.ctas if job.target == "nccl" else None,
        "us": _rounded(row.plan.us), "algbw_gbps": round(row.algorithm_gbps, 4), "busbw_gbps": round(row.bus_gbps, 4), "stock_us": _rounded(row.stock.us),
        "ratio": round(row.ratio, 4), "host_us": _rounded(row.plan.host_us), "stock_host_us": _rounded(row.stock.host_us), "bitwise_equal": row.difference is None, "checked_against": row.checked,
        "rounds": {"plan": _side_fields(row.plan), "stock": _side_fields(row.stock)}, **({} if row.difference is None else {"first_difference": asdict(row.difference)})}


def _side_fields(side: Side) -> dict[str, list[float]]:
    return {"us": [round(s * 1e6, 3) for s in side.seconds], "host_us": [round(s * 1e6, 3) for s in side.host_seconds]}


def _rounded(us: float | None) -> float | None:
    return None if us is None else round(us, 3)


def _driver(job: BenchJob) -> str:
    return find_driver() if job.target == "nccl" else ""


def _text(found: Bundle, job: BenchJob, bench: Bench) -> str:
    m = bench.machine
    gpus = [f"{m.gpus.count(name)} x {name}" for name in dict.fromkeys(m.gpus)]
    versions = [f"torch {m.torch}", *([f"CUDA {m.cuda}, NCCL {m.nccl}, driver {_driver(job) or 'not told'}"] if m.gpus else [])]
    copied = "to the next GPU" if m.gpus else "by one core"
    head = (
        f"# tidec {__version__}, bundle {found.digest[:12]}, {job.plans[0].nodes}x{job.plans[0].lanes}, target {job.target} beside {_STOCK[job.target]}",
        f"# {', '.join([*gpus, count_text(m.cores, 'core'), platform.machine(), *versions])}; one copy {copied}: {m.copy_gbps:.1f} GB/s",
        f"# {count_text(job.calls, 'call')} a measurement, medians of {count_text(job.rounds, 'round')} in both orders after one to warm up, of the slowest rank",
    )
    rows = [(short(r.measure.group), _spelt(r), job.target, str(r.size_bytes), r.dtype, str(r.measure.ctas) if m.gpus else "-", f"{r.plan.us:.1f}", f"{r.algorithm_gbps:.2f}", f"{r.bus_gbps:.2f}",
             f"{r.stock.us:.1f}", f"{r.ratio:.2f}", *(_host(side) for side in (r.plan, r.stock)), "equal" if r.difference is None else "DIFFERS") for r in bench.rows]
    columns = ("group", "collective", "target", "size B", "type", "CTAs", "us", "algbw", "busbw", "stock us", "ratio", "host us", "stock's", "bits")
    stock = [f"# {short(g.name)} keeps the stock {spelt(c)}: {cause.reason}" for g in found.groups for c, cause in zip(Collective, (g.all_gather, g.reduce_scatter))
             if isinstance(cause, StockCause)]
    return "\n".join((*head, "", table(columns, rows, right=(3, 5, 6, 7, 8, 9, 10, 11, 12)), *stock))


def _host(side: Side) -> str:
    return "-" if side.host_us is None else f"{side.host_us:.1f}"
