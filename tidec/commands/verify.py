"""`tidec verify`: a bundle re-checked without a solver; with --prove also proved and emitted again."""
from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from tidec.commands.answer import Answer
from tidec.commands.tell import count_text, table
from tidec.errors import Exit, TidecError
from tidec.inputs.ask import Collective, read_mode
from tidec.inputs.document import given_path
from tidec.verify.recheck import recheck
from tidec.verify.recheck_ask import ASK
from tidec.verify.recheck_words import Checked, Order, Report, tampered

if TYPE_CHECKING:
    from tidec.emit.bundle import Bundle
    from tidec.schedule.program import Program
    from tidec.verify.obligation import Claim


def run(*, bundle: str, is_proved_again: bool) -> Answer:
    """Exit 0 if everything holds, 1 where a claim does not, 3 where a plan is too large to decide here, 5 naming the file that was changed.

    is_proved_again: needs the packages of the extra tidec[compile].  Raises TidecError for everything but 0.
    """
    path = given_path(bundle, what="the bundle")
    report = recheck(path, will_prove=is_proved_again)
    proofs = _prove_again(path) if is_proved_again else ()
    checked = [*report.checked, *(c for p in report.plans for c in p.checked), *proofs]
    trusted = tuple(c for c in report.trusted if not (is_proved_again and "--prove" in c.what))
    fields = {
        "verdict": report.verdict, "order_by": report.order_by.value, "checked": [_jsonable(c) for c in checked], "trusted": [_jsonable(c) for c in trusted],
        "plans": [{"plan": p.stem, "order_by": p.order.value, "unfolded_nodes": list(p.nodes)} for p in report.plans],
    }
    return Answer(Exit.OK, fields, _text(report, checked, trusted))


def _jsonable(c: Checked) -> dict[str, str]:
    return {"file": c.file, "what": c.what}


def _text(report: Report, checked: list[Checked], trusted: tuple[Checked, ...]) -> str:
    rows = [(p.stem, p.order.value, f"unfolded on M = {', '.join(map(str, p.nodes))}" if p.order is Order.GRAPH else "for every node count") for p in report.plans]
    plans = {f"{p.stem}.{end}" for p in report.plans for end in ("plan.json", "cert.json")}
    lines = [table(("plan", "order by", "which holds"), rows), "", "checked"]
    lines += [f"  {c.file or 'bundle'}: {c.what}" for c in checked if c.file not in plans]
    lines += [f"  every {end}: {what}" for end, what in dict.fromkeys((c.file.split(".", 2)[2], c.what) for c in checked if c.file in plans)]
    lines += ["taken at its word", *(f"  {c.file or 'bundle'}: {c.what}" for c in trusted)]
    return "\n".join([*lines, "", f"{report.path}: {report.verdict} ({count_text(len(report.plans), 'plan')})"])


def _prove_again(path: Path) -> tuple[Checked, ...]:
    """Decide every claim of the stored programs with z3, and emit every source again. Raises the codes of claims; C001 for a source that differs."""
    # Loaded here, because a machine that only verifies has neither z3 nor jinja2.
    from tidec.emit.bundle import read_bundle
    from tidec.emit.render import render
    from tidec.verify.certificate import certify
    from tidec.verify.prove import prove_branch

    bundle = read_bundle(path)
    reports = {plan.program_digest: plan.program for plan in bundle.plans}
    found = {digest: prove_branch(program, single_node=_is_alone(bundle, digest)) for digest, program in reports.items()}
    proved = tuple(certify(plan, found[plan.program_digest]) for plan in bundle.plans)
    sources = {s.name: s.text for s in render(proved)}
    stored = {s.name: s.text for s in bundle.sources}
    for name in sorted(sources.keys() | stored.keys()):
        if sources.get(name) != stored.get(name):
            raise _not_emitted(bundle, name)
    claims = sum(len(r.claims) for r in found.values())
    steps = _steps_again(bundle, reports)
    return (
        Checked("", f"z3 proved {count_text(claims, 'claim')} of {count_text(len(found), 'program')} again"),
        *([Checked("", f"z3 proved {count_text(sum(map(len, steps)), 'claim')} of {count_text(len(steps), 'step')} of backward again")] if steps else []),
        Checked("", f"{count_text(len(sources), 'source')} emitted again, byte for byte the same"),
    )


def _steps_again(bundle: Bundle, programs: dict[str, Program]) -> list[tuple[Claim, ...]]:
    """The claims of every all-gather with every reduce-scatter in a step of backward. Raises the codes of those that do not hold."""
    from tidec.verify.step import prove_step_branch

    mode = read_mode(json.loads((bundle.path / ASK).read_bytes())["mode"])
    gathers, reduces = (dict.fromkeys(p.program_digest for p in bundle.plans if p.collective is c) for c in Collective)
    steps = []
    for gather, reduce in product(gathers, reduces):
        report = prove_step_branch(programs[gather], programs[reduce], mode=mode, single_node=_is_alone(bundle, gather))
        bad = [c.diagnostic for c in report.claims if c.diagnostic is not None]
        if bad:
            raise TidecError(*bad)
        steps.append(report.claims)
    return steps


def _is_alone(bundle: Bundle, digest: str) -> bool:
    return next(p.nodes for p in bundle.plans if p.program_digest == digest) == 1


def _not_emitted(bundle: Bundle, name: str) -> TidecError:
    from tidec import __version__

    by = "" if bundle.version == __version__ else f"; it was emitted by tidec {bundle.version}, this is {__version__}"
    return tampered(name, f"it is not what its plans emit{by}")
