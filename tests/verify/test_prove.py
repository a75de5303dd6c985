"""The shipped schedules hold for every M; what is wrong is refuted in the words of the schedule; proofs are kept by class."""
import json

import pytest

from tidec.errors import TidecError
from tidec.schedule.catalog import traced
from tidec.verify import prove as prove_module
from tidec.verify.obligation import Verdict
from tidec.verify.prove import premises_hold, prove

CLASSES = [
    ("ring_ag", 4, {}),
    ("tide_ag", 8, {}), ("tide_ag", 8, {"cast": True}), ("tide_ag", 8, {"multicast": True}), ("tide_ag", 1, {"cast": True}), ("tide_ag", 8, {"landings": 1}),
    ("tide_rs", 8, {"W": 8, "k": 4}), ("tide_rs", 8, {"W": 4, "k": 2, "n_part": 2}), ("tide_rs", 1, {"W": 1, "k": 1}), ("tide_rs", 6, {"W": 3, "k": 2, "n_stg": 1}),
    ("tide_rs", 4, {"W": 2, "k": 2, "n_out": 2}), ("tide_rs", 1, {"W": 1, "k": 1, "n_part": 3, "n_out": 1}),
]
WIDTHS = [(lanes, width) for lanes in (1, 2, 4, 8, 16, 32, 72) for width in range(1, lanes + 1) if lanes % width == 0]


class Kept(dict):
    def get(self, key):
        return super().get(key, "")

    def put(self, key, value):
        self[key] = value


@pytest.mark.parametrize(("name", "lanes", "knobs"), CLASSES)
def test_every_claim_of_a_shipped_schedule_is_proved(name, lanes, knobs):
    report = prove(traced(name, lanes, **knobs))
    assert not [str(c.diagnostic) for c in report.claims if c.verdict is not Verdict.PROVED]
    assert {c.scope for c in report.claims} == {"M = 1", "every M >= 2"}


@pytest.mark.parametrize(("lanes", "width"), [pytest.param(*x, marks=pytest.mark.sweep if x[0] == 72 and x[1] not in (8, 72) else pytest.mark.slow) for x in WIDTHS])
def test_every_width_that_divides_the_lanes_is_proved(lanes, width):
    report = prove(traced("tide_rs", lanes, W=width, k=min(4, width)))
    assert not [str(c.diagnostic) for c in report.claims if c.verdict is not Verdict.PROVED]


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 72])
@pytest.mark.parametrize("knobs", [{}, {"cast": True}, {"multicast": True}, {"cast": True, "multicast": True}, {"landings": 1}])
def test_the_all_gather_is_proved_at_every_lane_count(lanes, knobs):
    assert prove(traced("tide_ag", lanes, **knobs)).verdict is Verdict.PROVED


def test_width_3_at_8_lanes_meets_the_own_node_at_9_nodes(golden):
    report = prove(traced("tide_rs", 8, W=3, k=3))
    bad = [c for c in report.claims if c.verdict is not Verdict.PROVED]
    assert [c.code for c in bad] == ["V104"]
    assert bad[0].verdict is Verdict.REFUTED
    assert (bad[0].example["M"], bad[0].example["w"], bad[0].example["contributor"]) == (9, 2, [8, 9])
    golden("verify/width-3.txt", str(bad[0].diagnostic) + "\n")


def test_width_3_is_proved_under_its_premise():
    program = traced("tide_rs", 8, W=3, k=3)
    report = prove(program, with_premises=True)
    assert report.verdict is Verdict.PROVED
    assert "every M >= 2 with (M - 1) % 3 <= (M - 1) % 8" in {c.scope for c in report.claims}
    assert premises_hold(program, 8) and not premises_hold(program, 9)


def test_a_premise_that_fails_is_shown_at_its_own_node_count():
    report = prove(traced("tide_rs", 8, W=3, k=3), nodes=17, first_only=True)
    assert report.verdict is Verdict.REFUTED
    assert report.claims[-1].example["M"] == 17
    assert {c.scope for c in report.claims} == {"M = 17"}


def test_a_kept_proof_costs_no_solver(monkeypatch):
    kept = Kept()
    first = prove(traced("tide_ag", 4), store=kept)
    assert len(kept) == 2
    monkeypatch.setattr(prove_module, "_decide", lambda *_: pytest.fail("the solver was asked again"))
    again = prove(traced("tide_ag", 4), store=kept)
    assert again.from_store and again.verdict is Verdict.PROVED
    assert [(c.code, c.what, c.scope) for c in again.claims] == [(c.code, c.what, c.scope) for c in first.claims]


def test_a_kept_proof_is_not_used_for_another_class():
    kept = Kept()
    prove(traced("tide_ag", 4), store=kept)
    assert not prove(traced("tide_ag", 4, cast=True), store=kept).from_store
    assert not prove(traced("tide_ag", 5), store=kept).from_store


def test_a_refuted_program_is_never_kept():
    kept = Kept()
    report = prove(traced("tide_rs", 8, W=3, k=3), store=kept)
    assert report.verdict is Verdict.REFUTED
    assert [json.loads(v)[0][0] for v in kept.values()] == ["V902"]      # the branch of one node, which holds
    assert all("every M" not in k for k in kept)


def test_a_budget_that_is_too_small_is_unknown_and_says_so():
    report = prove(traced("tide_rs", 8, W=8, k=4), rlimit=2_000)
    assert report.verdict in (Verdict.UNKNOWN, Verdict.VACUOUS)
    unknown = [c for c in report.claims if c.verdict is Verdict.UNKNOWN]
    assert unknown and all(c.diagnostic.code == "V901" for c in unknown)


def test_an_unknown_schedule_is_a_usage_error():
    with pytest.raises(TidecError, match="P001"):
        traced("tide_xx", 8)


@pytest.mark.parametrize("nodes", [1, 2, 3, 9, 16])
def test_one_node_count_is_proved_although_some_ops_never_run_there(nodes):
    report = prove(traced("tide_rs", 8, W=4, k=2), nodes=nodes)
    assert report.verdict is Verdict.PROVED
    assert {c.scope for c in report.claims} == {f"M = {nodes}"}
