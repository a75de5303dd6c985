"""Only a plan whose claims are all proved gets a certificate."""
import json
import subprocess
import sys
from dataclasses import replace

import pytest

from tidec.errors import Exit, TidecError
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import read_groups
from tidec.inputs.topology import parse_topology
from tidec.plan.lower import lower
from tidec.schedule.catalog import traced
from tidec.verify.budget import plan_claims
from tidec.verify.certificate import certify
from tidec.verify.obligation import Claim, Verdict
from tidec.verify.prove import Report, prove

GROUP = read_groups('{"params": [{"name": "w", "shape": [33, 5], "dtype": "bf16"}, {"name": "b", "shape": [7], "dtype": "bf16"}]}', file="g.json").groups[0]


def planned(topo: str, collective: Collective, *settings: str):
    topology = parse_topology(topo)
    return lower(Ask(topology, GROUP, Lowering.P2P, parse_knobs(settings, topology.lanes)), collective)


def test_a_proved_plan_carries_its_claims_and_what_is_assumed():
    plan = planned("3x2", Collective.ALL_GATHER)
    report = prove(traced("tide_ag", 2), nodes=3)
    certificate = json.loads(certify(plan, report).certificate)
    assert (certificate["plan"], certificate["nodes"]) == (plan.digest, 3)
    assert len(certificate["claims"]) == len(report.claims) + 3
    assert {c["verdict"] for c in certificate["claims"]} == {"proved"}
    assert [c["code"] for c in certificate["claims"] if c["scope"] == "this plan"] == ["V402", "V402", "P013"]
    assert [a["id"] for a in certificate["assumes"]][:3] == ["T1", "T2", "T3"]


def test_a_node_count_outside_the_premises_gets_none():
    plan = planned("9x8", Collective.REDUCE_SCATTER, "W=3")
    proved_under_its_premise = Report((), 0.0, False)
    with pytest.raises(TidecError, match="P013 premise") as caught:
        certify(plan, proved_under_its_premise)
    assert caught.value.exit is Exit.REFUTED


def test_a_broken_arena_gets_none():
    plan = planned("3x2", Collective.REDUCE_SCATTER)
    overlapping = replace(plan.arena, regions=tuple(replace(r, offset=0) for r in plan.arena.regions))

    class Broken:
        """The plan with another arena."""

        def __getattr__(self, name):
            return overlapping if name == "arena" else getattr(plan, name)

    assert [c.verdict for c in plan_claims(plan)] == [Verdict.PROVED] * 3
    assert [c.verdict for c in plan_claims(Broken())] == [Verdict.PROVED, Verdict.REFUTED, Verdict.PROVED]


def test_what_is_refuted_is_told_before_what_is_unknown():
    plan = planned("3x2", Collective.REDUCE_SCATTER)
    refuted = [c for c in prove(planned("9x8", Collective.REDUCE_SCATTER, "W=3").program, nodes=9).claims if c.verdict is Verdict.REFUTED]
    unknown = Claim("V201", "", "every M", Verdict.UNKNOWN, 0.0, diagnostic=replace(refuted[0].diagnostic, code="V901"))
    with pytest.raises(TidecError) as caught:
        certify(plan, Report((unknown, *refuted), 0.0, False))
    assert [d.code for d in caught.value.diagnostics] == ["V104", "V901"]
    assert caught.value.exit is Exit.REFUTED


def test_what_was_proved_is_planned_and_written_without_the_prover(tmp_path):
    script = """if True:
        import sys
        sys.modules["z3"] = None
        from tidec.emit.bundle import write_bundle
        from tidec.inputs.ask import Ask, Collective
        from tidec.inputs.capability import Lowering
        from tidec.inputs.knobs import parse_knobs
        from tidec.inputs.signature import Dtype, Group, Parameter
        from tidec.inputs.topology import parse_topology
        from tidec.plan.lower import lower
        from tidec.verify.certificate import Proved
        ask = Ask(parse_topology("3x2"), Group("g", 1, (Parameter("w", (7, 3), Dtype.BF16),)), Lowering.P2P, parse_knobs((), 2, nodes=3))
        print(*(p.collective.value for p in write_bundle([Proved(lower(ask, c), "{}") for c in Collective], asks=[ask], out=sys.argv[1]).plans))
    """
    done = subprocess.run((sys.executable, "-c", script, str(tmp_path / "bundle")), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [c.value for c in Collective]
