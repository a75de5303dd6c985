"""`tidec prove`: the claims of one schedule, for every node count."""
from __future__ import annotations

import inspect
from collections.abc import Mapping

from tidec.cache.key import Cache, prover_identity
from tidec.cache.proofs import ProofStore, open_proofs
from tidec.commands.answer import Answer
from tidec.commands.asking import read_count
from tidec.commands.tell import table
from tidec.errors import CODES, Diagnostic, Exit, TidecError
from tidec.inputs.ask import Mode, read_mode
from tidec.inputs.capability import Lowering, choose_lowering
from tidec.inputs.document import quoted
from tidec.inputs.knobs import Knobs, num_chunks, parse_knobs
from tidec.inputs.signature import LANDINGS
from tidec.inputs.topology import MAX_LANES, Topology
from tidec.schedule.catalog import STEP, function, names, traced
from tidec.verify.obligation import Claim, Verdict
from tidec.verify.prove import NoStore, Report, Store, prove
from tidec.verify.step import Place, Step, prove_step, step_of

_EXITS = {Verdict.PROVED: Exit.OK, Verdict.REFUTED: Exit.REFUTED, Verdict.VACUOUS: Exit.REFUTED, Verdict.UNKNOWN: Exit.UNKNOWN}
_MAX_MESSAGES = 3
_LANDINGS = "landings"
_UNTOLD = ("multicast", "ahead", "slot_reuse")      # knobs that other words of an answer say


def run(
    *, schedule: str | None, lanes: str | None, settings: tuple[str, ...], capability: str | None, is_sweep: bool, cache: Cache | None, step: str | None = None,
    mode: str | None = None,
) -> Answer:
    """Exit 0 proved, 1 refuted or vacuous, 3 unknown. cache: `None` = proofs are neither read nor kept; others: `None` = not given."""
    if is_sweep:
        if schedule is not None or lanes is not None or settings or capability is not None or step is not None or mode is not None:
            raise TidecError(Diagnostic("P001", "--paper-sweep takes no other options", reason="the paper fixes L = 8, M in 2..1024 and W in 1..8",
                                        help="run tidec prove --paper-sweep"))
        return _sweep()
    if (schedule is None) is (step is None) or lanes is None:
        raise TidecError(Diagnostic("P001", "prove needs --lanes and either --schedule or --step, or --paper-sweep", help=f"the schedules are {', '.join(names())}"))
    if step is None and mode is not None:
        raise TidecError(Diagnostic("P001", f"schedule {schedule} is the same in every mode", help="leave --mode out, or prove a step with --step"))
    num_lanes = read_count(lanes, option="--lanes", low=1, high=MAX_LANES)
    lowering = choose_lowering(Topology(1, num_lanes), capability)
    store = NoStore() if cache is None else open_proofs(cache, prover_identity())
    if step is not None:
        place, own = _place(step), read_mode(mode or Mode.IN_PLACE.value)
        one = _step(settings, num_lanes, lowering, place, own)
        report = prove_step(one, store=store)
        return _answer(STEP, num_lanes, lowering, one.several.knobs, report, store, f"the next all-gather {place.value}, {own.value}",
                       {"step": place.value, "mode": own.value})
    arguments = _arguments(schedule, settings, num_lanes, lowering)
    if capability is not None and "multicast" not in arguments:
        raise TidecError(Diagnostic("P001", f"schedule {schedule} is the same for every capability", help="leave --capability out"))
    program = traced(schedule, num_lanes, **arguments)
    return _answer(schedule, num_lanes, lowering, program.knobs, prove(program, store=store), store)


def _place(text: str) -> Place:
    for place in Place:
        if text == place.value:
            return place
    raise TidecError(Diagnostic("P001", f"there is no place {quoted(text)} for an all-gather", help="write --step ahead or --step behind (of the network phase)"))


def _step(settings: tuple[str, ...], lanes: int, lowering: Lowering, place: Place, mode: Mode) -> Step:
    """The step of both shipped collectives; each takes of the settings what it has. Without one, the outbox is that of the mode for many nodes (eq. 9)."""
    gather = tuple(s for s in settings if s.partition("=")[0] in ("cast", _LANDINGS))
    knobs, is_set = parse_knobs(_knobs(settings), lanes), {setting.partition("=")[0] for setting in settings}
    if mode is Mode.SLOT_REUSE and "n_out" not in is_set:
        settings = (*settings, f"n_out={2 * min(knobs.k, knobs.W)}")
    reduce = tuple(s for s in settings if s not in gather)
    parts = (traced(name, lanes, **_arguments(name, own, lanes, lowering)) for name, own in (("tide_ag", gather), ("tide_rs", reduce)))
    return step_of(*parts, mode=mode, place=place)


def _arguments(schedule: str, settings: tuple[str, ...], lanes: int, lowering: Lowering) -> dict[str, object]:
    """The arguments of a schedule's function: its own knobs as set, or as they are by default. Raises P006 for a knob that it does not have."""
    wanted = [p for p in inspect.signature(function(schedule)).parameters.values() if p.kind is p.KEYWORD_ONLY]
    own = [p.name for p in wanted if p.name != "multicast"]
    for setting in settings:
        name = setting.partition("=")[0]
        if name not in own and name in Knobs.__dataclass_fields__:
            help = f"its knobs are {', '.join(own)}" if own[1:] else f"its only knob is {own[0]}" if own else "leave --set out: it has none"
            raise TidecError(Diagnostic("P006", f"schedule {schedule} has no knob {name}", help=help))
    knobs = parse_knobs(_knobs(settings) if _LANDINGS in own else settings, lanes)
    values: dict[str, object] = {name: getattr(knobs, name) for name in own if hasattr(knobs, name)}
    values.update({name: num_chunks(knobs) for name in ("chunks",) if name in values})
    values.update({name: str(values[name]) for name in ("n_out",) if name in values and not isinstance(values[name], int)})
    values.update({name: bool(values[name]) for name in ("cast",) if name in values})
    values.update(_landings(settings))
    return values | ({"multicast": lowering is Lowering.NVLS} if any(p.name == "multicast" for p in wanted) else {})


def _knobs(settings: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(s for s in settings if s.partition("=")[0] != _LANDINGS)


def _landings(settings: tuple[str, ...]) -> dict[str, object]:
    """The argument that no knob is, since a group has it: nothing where it is not set, or set to the default. Raises P006."""
    found = [s.partition("=")[2] for s in settings if s not in _knobs((s,))]
    if not found:
        return {}
    if len(found) > 1 or found[0] not in map(str, range(1, LANDINGS + 1)):
        raise TidecError(Diagnostic("P006", f"{_LANDINGS} is {' and '.join(map(quoted, found))}, not one of 1..{LANDINGS}", help=f"write {_LANDINGS}=1, or leave it out"))
    return {} if int(found[0]) == LANDINGS else {_LANDINGS: int(found[0])}


def _answer(schedule: str, lanes: int, lowering: Lowering, knobs: tuple, report: Report, store: Store, about: str = "", more: Mapping[str, str] = {}) -> Answer:
    claims = [_claim_fields(c) for c in report.claims]
    fields = {"schedule": schedule, "lanes": lanes, "lowering": lowering.value, "knobs": dict(knobs), **more, "verdict": report.verdict.value,
              "counts": dict(report.counts()), "seconds": round(report.seconds, 3), "from_store": report.from_store, "claims": claims}
    spelt = " ".join(f"{name}={int(value) if isinstance(value, bool) else value}" for name, value in knobs if name not in _UNTOLD)
    head = ", ".join(x for x in (f"{schedule} at {lanes} lane{'' if lanes == 1 else 's'}", lowering.value, about, spelt) if x)
    notes = store.notes if isinstance(store, ProofStore) else []
    counts = {word: n for word, n in report.counts().items() if n}
    said = f"all {len(report.claims):,}" if len(counts) == 1 else f"{', '.join(f'{n:,} {word}' for word, n in counts.items())} of {len(report.claims):,}"
    how = "known from the proof store" if report.from_store else f"in {report.seconds:.2f} s"
    scopes = " and ".join(dict.fromkeys(c.scope for c in report.claims))
    text = "\n".join((head, "", claims_table(report.claims), "", f"{report.verdict.value}: {said} claims, for {scopes}, {how}"))
    bad = [c.diagnostic for c in report.claims if c.diagnostic is not None]
    messages = [str(d) for d in bad[:_MAX_MESSAGES]]
    if len(bad) > _MAX_MESSAGES:
        messages.append(f"{len(bad) - _MAX_MESSAGES} more claims are not proved; --json lists them all")
    return Answer(_EXITS[report.verdict], fields, text, (*map(str, notes), *messages))


def claims_table(claims: tuple[Claim, ...]) -> str:
    """One line a code: how many claims have which verdict, and what they cost."""
    rows = []
    for code in sorted({c.code for c in claims}):
        own = [c for c in claims if c.code == code]
        counts = [sum(c.verdict is v for c in own) for v in Verdict]
        rows.append((f"{code} {CODES[code].name}", *(str(n) if n else "." for n in (len(own), *counts)), f"{sum(c.seconds for c in own):.2f}"))
    return table(("code", "claims", *(v.value for v in Verdict), "seconds"), rows, right=range(1, 7))


def _claim_fields(claim: Claim) -> dict[str, object]:
    fields: dict[str, object] = {"code": claim.code, "what": claim.what, "scope": claim.scope, "verdict": claim.verdict.value, "seconds": round(claim.seconds, 4)}
    if claim.example:
        fields["example"] = dict(claim.example)
    if claim.spots:
        fields["places"] = [str(s) for s in claim.spots]
    if claim.diagnostic is not None:
        fields["message"] = str(claim.diagnostic)
    return fields


def _sweep() -> Answer:
    from tidec.verify.sweep import FIRST_M, LANES, LAST_M, paper_sweep

    found = paper_sweep()
    verdict = Verdict.REFUTED if found.disagreements else found.verdict
    fields = {"verdict": verdict.value, "accepted": found.accepted, "rejected": found.rejected, "colliding": list(found.colliding),
              "disagreements": found.disagreements, "seconds": round(found.seconds, 3)}
    rows = [(str(width), f"{count:,}") for width, count in enumerate(found.colliding, start=1)]
    text = "\n".join((
        f"base plans at L = {LANES}, every M in {FIRST_M}..{LAST_M} and every W in 1..{LANES}: {found.accepted:,} accepted, {found.rejected:,} refused", "",
        table(("W", "node counts refused"), rows, right=(0, 1)), "",
        f"{verdict.value}: the premise that refuses them holds exactly where no two contributors of a wave meet, for every M >= 2;",
        f"enumeration disagrees on {found.disagreements} of {len(found.colliding) * (LAST_M - FIRST_M + 1):,} pairs, in {found.seconds:.2f} s",
    ))
    return Answer(_EXITS[verdict], fields, text)
