"""Only a plan whose claims are all proved gets a certificate."""
import json
from types import SimpleNamespace

import pytest

from tidec.errors import TidecError
from tidec.schedule.catalog import traced
from tidec.verify.certificate import certify
from tidec.verify.prove import prove

PLAN = SimpleNamespace(digest="d" * 64, program_digest="p" * 64, nodes=4)


def test_a_proved_plan_carries_its_claims_and_what_is_assumed():
    report = prove(traced("ring_ag", 2))
    certificate = json.loads(certify(PLAN, report).certificate)
    assert certificate["plan"] == PLAN.digest
    assert len(certificate["claims"]) == len(report.claims)
    assert {c["verdict"] for c in certificate["claims"]} == {"proved"}
    assert [a["id"] for a in certificate["assumes"]][:3] == ["T1", "T2", "T3"]


def test_a_refuted_plan_gets_none():
    report = prove(traced("tide_rs", 8, W=3, k=3), nodes=9, first_only=True)
    with pytest.raises(TidecError, match="V104 exclusive"):
        certify(PLAN, report)
