"""What a bundle carries to say why its plan is right, and the only type that can be emitted."""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidec.errors import TidecError
from tidec.verify.axioms import AXIOMS
from tidec.verify.budget import plan_claims
from tidec.verify.obligation import Verdict

if TYPE_CHECKING:
    from tidec.plan.ir import Plan
    from tidec.verify.prove import Report

SCHEMA = "tidec.certificate/1"


@dataclass(frozen=True, slots=True)
class Proved:
    """A plan all of whose claims are proved, with its certificate (canonical JSON). Made by `certify` alone."""

    plan: Plan
    certificate: str


def certify(plan: Plan, report: Report) -> Proved:
    """The plan as proved. Raises TidecError with the message of every claim that is not: refuted ones first, then vacuous, then unknown ones."""
    # Loaded here, because what was proved is also written, rendered and built where there is no prover.
    from tidec.verify.solver import version

    order = (Verdict.REFUTED, Verdict.VACUOUS, Verdict.UNKNOWN)
    claims = (*report.claims, *plan_claims(plan))
    bad = [c.diagnostic for verdict in order for c in claims if c.verdict is verdict]
    if bad:
        raise TidecError(*bad)
    certificate = {
        "schema": SCHEMA,
        "plan": plan.digest,
        "program": plan.program_digest,
        "nodes": plan.nodes,
        "claims": [{"code": c.code, "what": c.what, "scope": c.scope, "verdict": c.verdict.value} for c in claims],
        "assumes": [{"id": a.id, "says": a.says} for a in AXIOMS],
        "prover": {"z3": version()},
    }
    return Proved(plan, json.dumps(certificate, sort_keys=True, separators=(",", ":"), ensure_ascii=True))
