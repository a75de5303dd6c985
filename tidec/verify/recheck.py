"""Re-checks a bundle without a solver: plain Python on the standard library, nothing of the generator or of the prover. START HERE to read the checker.

    recheck_files     every file against the digest that lists it                     recheck_layout   rows, sub-slices and regions, from shapes alone
    recheck_ask       every plan against the group that asks for it                   recheck_reduce   the op table against eqs. 6-8
    recheck_theorems  which programs were proved for every M                          recheck_gather   the op table against Bruck's rounds
    recheck_certificate  every claim is there and proved, of this plan                recheck_text, recheck_table, recheck_index   how a plan and its op table are read
    recheck_program, recheck_unfold, recheck_graph    a program that is no theorem, on a small topology

Nothing found in a bundle is run: index expressions are read by `recheck_index.py`. What is taken at its word stands in `Report.trusted`.
"""
from __future__ import annotations

import gc
import os
from pathlib import Path

from tidec.verify.recheck_ask import Wanted, check_ask, check_wanted
from tidec.verify.recheck_certificate import check_certificate
from tidec.verify.recheck_files import SEAL, Files, read_files, sha256, spelt
from tidec.verify.recheck_gather import check_all_gather
from tidec.verify.recheck_graph import check_graph, graph_nodes
from tidec.verify.recheck_index import TooLarge, read
from tidec.verify.recheck_layout import Facts, check_layout, layout_of
from tidec.verify.recheck_program import check_program
from tidec.verify.recheck_reduce import check_reduce_scatter
from tidec.verify.recheck_text import Known, known_theorem
from tidec.verify.recheck_theorems import Theorems, canonical, load
from tidec.verify.recheck_words import Checked, Order, PlanReport, Report, refuted, tampered, unknown

_PLAN_KEYS = ["arena", "collective", "lanes", "lowering", "nodes", "packed_elems", "params", "program", "schema", "shard_bytes", "sub_slices", "waits"]
_PLAN_SCHEMA = "tidec.plan/1"
_MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError, StopIteration, ArithmeticError)
_KNOBS = {"W": (1, 72), "k": (1, 32), "n_part": (1, 4), "n_stg": (1, 8), "n_out": (1, 2**31 - 1), "chunks": (1, 256), "stripes": (1, 8)}


def recheck(path: str | os.PathLike[str], *, will_prove: bool = False) -> Report:
    """Re-check the bundle at `path`.

    will_prove: the caller decides every claim with the solver afterwards, so that the order of a plan may be too large to decide here (`Order.PROOF`).
    Returns a report only if everything holds.  Raises P001 where there is no bundle; C001 naming the file that is not what was proved; a code of the
    claim (V101 .. V402, P013) where every digest fits and the plan is wrong all the same; V901 where a plan is too large to decide here.
    """
    folder = Path(path)
    files, theorems = read_files(folder), load()
    try:
        wanted = check_ask(files)
    except _MALFORMED as problem:
        raise tampered("manifest.json", f"it or ask.json is not of this version: {type(problem).__name__} {str(problem):.60}") from problem
    shown: set[str] = set()
    plans = tuple(check_plan(w, files.listed[f"{w.stem}.plan.json"], files.listed[f"{w.stem}.cert.json"], theorems, shown, will_prove=will_prove) for w in wanted)
    return Report(os.fspath(path), "proved", plans, _checked(files), _trusted(files, plans, wanted))


def check_plan(wanted: Wanted, plan: bytes, certificate: bytes, theorems: Theorems, shown: set[str] | None = None, *, will_prove: bool = False) -> PlanReport:
    """Re-check one plan and its certificate. shown: programs whose graph was clean before; `None` = none. Raises as `recheck`."""
    file, is_collecting = f"{wanted.stem}.plan.json", gc.isenabled()
    gc.disable()    # what is made here is many lists without a cycle, which a search for cycles would look through several times
    try:
        return _check_plan(wanted, file, plan, certificate, theorems, set() if shown is None else shown, will_prove)
    except TooLarge as problem:
        raise unknown(file, str(problem)) from problem
    except _MALFORMED as problem:
        raise tampered(file, f"it is not a plan of this version: {type(problem).__name__} {str(problem):.60}") from problem
    finally:
        if is_collecting:
            gc.enable()


def _check_plan(wanted: Wanted, file: str, data: bytes, certificate: bytes, theorems: Theorems, shown: set[str], will_prove: bool) -> PlanReport:
    if sha256(data) != wanted.digest:
        raise tampered(file, "its sha256 is not the digest that the manifest gives the plan")
    text = data.decode("ascii")
    known = known_theorem(file, text, theorems)
    plan = known.plan if known else spelt(file, text)
    waits = [] if known else plan.pop("waits")
    if sorted(plan) != _PLAN_KEYS[:-1] or plan["schema"] != _PLAN_SCHEMA:
        raise tampered(file, f"its schema is {str(plan.get('schema')):.40}, and this version reads {_PLAN_SCHEMA}")
    facts = _facts(file, plan)
    program = _program_text(facts, text, plan, known, waits)
    if sha256(program.encode()) != wanted.program_digest:
        raise tampered(file, "its program's sha256 is not the one that the manifest gives it")
    check_wanted(wanted, plan, facts)
    check_certificate(f"{wanted.stem}.cert.json", certificate, wanted, facts, theorems)
    _check_premises(facts)
    if known:
        order, nodes = Order.THEOREM, ()
        # Its body is one that was proved, so that one rank tells whether it is of these knobs, and the copies to one other lane whether of these lanes.
        _check_table(facts, ((facts.nodes - 1, facts.lanes - 1, 1),), lanes=(0,))
    else:
        order, nodes = Order.GRAPH, graph_nodes(facts)
        check_program(facts, waits)
        _check_table(facts, tuple((n, j, e) for n in _some(facts.nodes) for j in range(facts.lanes) for e in (4, 5)), lanes=())
        # What the graph shows depends on the program with its knobs and on the node counts alone, so groups share it.
        key = f"{wanted.program_digest} {nodes}"
        try:
            for count in nodes if key not in shown else ():
                check_graph(facts, waits, count)
            shown.add(key)
        except TooLarge:
            if not will_prove:
                raise
            order, nodes = Order.PROOF, ()
    return PlanReport(wanted.stem, order, nodes, _plan_checked(wanted.stem, facts, order, nodes))


def _facts(file: str, plan: dict) -> Facts:
    """What the plan says that it is. Raises C001 where that is nothing that this version plans."""
    program, nodes, lanes = plan["program"], plan["nodes"], plan["lanes"]
    knobs = dict(map(tuple, program["knobs"]))
    fits = type(nodes) is int and type(lanes) is int and nodes >= 1 and lanes >= 1 and program["lanes"] == lanes
    if not fits or [[name, knobs[name]] for name in sorted(knobs)] != program["knobs"]:
        raise tampered(file, "its program is for another number of lanes, or its knobs are not in order")
    for name, (low, high) in _KNOBS.items():
        x = knobs.get(name, low)
        if (name, x) != ("n_out", "full") and not (type(x) is int and low <= x <= high):
            raise tampered(file, f"the knob {name} of its program is out of range")
    return Facts(file, plan["collective"], nodes, lanes, knobs, program)


def _some(nodes: int) -> range | tuple[int, ...]:
    return range(nodes) if nodes <= 64 else (0, 1, nodes // 2, nodes - 1)


def _program_text(facts: Facts, text: str, plan: dict, known: Known | None, waits: list) -> str:
    """The program's canonical text.

    known: the plan's text taken apart, where the program is a theorem: then only what is around it is spelt to compare, and its knobs.
    Raises V402 where the plan says another layout; C001 where it is not spelt canonically.
    """
    layout = layout_of(plan, facts)
    content, place = {**plan, **layout}, _PLAN_KEYS.index("program")
    if known:
        head, tail = (canonical({key: content[key] for key in keys}) for keys in (_PLAN_KEYS[:place], _PLAN_KEYS[place + 1 : -1]))
        fits = (head[:-1], f",{tail[1:-1]}", canonical(plan["program"]["knobs"])) == (known.parts.head, known.parts.tail, known.knobs)
    else:
        fits = canonical({**content, "waits": waits}) == text
    if not fits:
        check_layout(plan, layout, facts)
        raise tampered(facts.file, "it is not spelt canonically")
    return known.parts.program if known else canonical(plan["program"])


def _check_premises(facts: Facts) -> None:
    """The conditions under which the theorems say something of this plan. Raises P013, C001."""
    knobs, M, L, file = facts.knobs, facts.nodes, facts.lanes, facts.file
    for premise in facts.program["premises"]:
        if read(premise, {"M": M}) is not True:
            raise refuted("P013", file, f"M = {M} is no node count for which its program was proved")
    if facts.is_gather:
        return
    W, k, n_out = knobs["W"], knobs["k"], knobs["n_out"]
    if W > L or facts.chunks % facts.stripes:
        raise refuted("P013", file, "a wave is wider than a node, or stripes do not divide the chunks")
    if M > 1 and L % W and (M - 1) % W > (M - 1) % L:
        raise refuted("P013", file, f"contributors of the last wave collide where M = {M} and W = {W}", reason="(M-1) mod W > (M-1) mod L")
    if n_out != "full" and n_out < min(k, W, M - 1):
        raise refuted("P013", file, f"an outbox of {n_out} blocks makes rounds wait for each other", reason=f"min(k, W, M-1) = {min(k, W, M - 1)}")


def _check_table(facts: Facts, points: tuple[tuple[int, int, int], ...], *, lanes: tuple[int, ...]) -> None:
    check = check_all_gather if facts.is_gather else check_reduce_scatter
    for point in points:
        check(facts, point, lanes)


# ---- what is told


def _checked(files: Files) -> tuple[Checked, ...]:
    built = f", {files.num_built} of a build" if files.num_built else ""
    unfinished = (Checked("lib", "a build was stopped before it ended: none of it is used, and the next build replaces it"),) if files.is_unfinished else ()
    return (
        Checked("", f"{len(files.listed)} files have the sha256 and size that the manifest lists{built}; none is missing, none is more"),
        Checked(SEAL, "it is the manifest's sha256"),
        Checked("ask.json", "every group has the plans that it asks for, and keeps a stock collective only where it must"),
        Checked("module.cpp", "its table of programs names the plans by their digests"),
        *unfinished,
    )


def _plan_checked(stem: str, facts: Facts, order: Order, nodes: tuple[int, ...]) -> tuple[Checked, ...]:
    form = "Bruck's rounds, slots, runs and destinations" if facts.is_gather else "eqs. 6-8, waves, generations, stale blocks, staging and outbox order"
    reason = "its families with their wait edges are a theorem for every M"
    if order is Order.PROOF:
        reason = "too large to unfold, and left to z3"
    if order is Order.GRAPH:
        reason = f"every access is ordered, and every output holds what it should, on topologies of {', '.join(map(str, nodes))} nodes"
    return (
        Checked(f"{stem}.cert.json", "it is this plan's, every claim in it is proved, no code of claims is missing, and the premises hold"),
        Checked(f"{stem}.plan.json", "rows, sub-slices and regions are those that the shapes give"),
        Checked(f"{stem}.plan.json", f"its op table is the closed forms': {form}"),
        Checked(f"{stem}.plan.json", f"order: {reason}"),
    )


def _trusted(files: Files, plans: tuple[PlanReport, ...], wanted: tuple[Wanted, ...]) -> tuple[Checked, ...]:
    sources = len([name for name in files.listed if not name.endswith(".json")])
    echo = "that the compiled echo was compared" if files.manifest["echo"]["checked"] else "nothing: the echo was not compared when it was compiled"
    told = [
        Checked("", f"{sources} emitted sources are what the plans emit (tidec verify --prove emits them again)"),
        Checked("manifest.json", f"of the echo, {echo}"),
        Checked("", "the axioms in the certificates"),
    ]
    if len({w.collective for w in wanted}) > 1:
        told.append(Checked("", "that its collectives go together in a step of backward, proved when it was compiled (tidec verify --prove proves it again)"))
    if any(p.order is Order.THEOREM for p in plans):
        told.append(Checked("", "z3's proofs of the theorems, made by this version's tests (tidec verify --prove proves them again)"))
    for p, w in zip(plans, wanted):
        nodes = w.ask["topology"]["nodes"]
        if p.order is Order.GRAPH and p.nodes != (nodes,):
            shown = ", ".join(map(str, p.nodes))
            told.append(Checked(f"{p.stem}.plan.json", f"ordered at M = {nodes} as at M = {shown}, and by z3 in its certificate (tidec verify --prove proves it again)"))
    return tuple(told)
