"""A step of backward: what the next all-gather and a reduce-scatter do to each other, for every M and on small plans."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tidec.inputs.ask import Mode
from tidec.interpret.edits import with_items, placed
from tidec.schedule.catalog import STEP_FILE, traced
from tidec.schedule.program import OpKind, Program, statements
from tidec.verify.graph import check
from tidec.verify.obligation import Verdict
from tidec.verify.solver import Answers
from tidec.verify.step import DEPTH, Place, Step, place_of, prove_step, step_of

ANSWERS = Answers()
IN_PLACE, SLOT_REUSE = Mode
AHEAD, BEHIND = Place
GOOD = [(IN_PLACE, AHEAD, "full"), (IN_PLACE, AHEAD, 2), (IN_PLACE, BEHIND, "full"), (SLOT_REUSE, AHEAD, "full"), (SLOT_REUSE, BEHIND, "full"), (SLOT_REUSE, BEHIND, 2)]


def step(lanes: int, mode: Mode, place: Place, n_out: int | str, source: str = "", cast: bool = False, landings: int = 2, **knobs: object) -> Step:
    reduce = traced("tide_rs", lanes, **{"W": lanes, "k": 1, "n_out": n_out, **knobs})
    return step_of(traced("tide_ag", lanes, cast=cast, landings=landings), reduce, mode=mode, place=place, source=source)


def bad(report) -> list[str]:
    return [f"{c.verdict.value} {c.code} {c.what}" for c in report.claims if c.verdict is not Verdict.PROVED]


FEW = (GOOD[0], GOOD[3], GOOD[5])


@pytest.mark.parametrize(("mode", "place", "n_out"), [pytest.param(*g, marks=() if g in FEW else pytest.mark.slow) for g in GOOD], ids=lambda x: str(getattr(x, "value", x)))
def test_a_step_is_proved_for_every_node_count(mode, place, n_out):
    report = prove_step(step(2, mode, place, n_out), answers=ANSWERS)
    assert not bad(report)
    codes = {c.code for c in report.claims}
    assert codes >= {"V202", "V203", "V204"} and (mode is IN_PLACE or codes >= {"V107", "V201"})


@pytest.mark.parametrize(("mode", "place", "n_out"), [pytest.param(*g, marks=() if g == GOOD[3] else pytest.mark.slow) for g in GOOD], ids=lambda x: str(getattr(x, "value", x)))
def test_a_step_whose_gradients_lie_in_the_only_landing_is_proved(mode, place, n_out):
    assert not bad(prove_step(step(2, mode, place, n_out, landings=1), answers=ANSWERS))


@pytest.mark.slow
@pytest.mark.parametrize("knobs", [dict(W=8, k=4), dict(W=4, k=2, n_part=2), dict(W=8, k=4, chunks=8), dict(W=8, k=4, chunks=4, stripes=2, cast=True), dict(W=3, k=2)])
@pytest.mark.parametrize(("mode", "place", "n_out"), GOOD, ids=lambda x: str(getattr(x, "value", x)))
def test_a_step_of_eight_lanes_is_proved(mode, place, n_out, knobs):
    report = prove_step(step(8, mode, place, n_out if n_out == "full" else 2 * knobs["k"], **knobs), with_premises=True)
    assert not bad(report)


def test_an_all_gather_ahead_of_reads_that_a_partial_outbox_puts_off_waits_for_what_is_issued_behind_it():
    report = prove_step(step(2, SLOT_REUSE, AHEAD, 2), answers=ANSWERS)
    (claim,) = [c for c in report.claims if c.verdict is not Verdict.PROVED]
    assert (claim.verdict, claim.code, claim.scope) == (Verdict.REFUTED, "V204", "every M >= 2")
    assert claim.example["M"] == 2 and claim.example["e"] == 0
    assert [s.file for s in claim.spots] == ["schedules/tide_rs.py", STEP_FILE]
    assert "s.free(grad" in claim.spots[0].text and "if not full" in claim.spots[0].via[-1].text and "the prefetch gate" in claim.spots[1].text


def test_a_mode_says_where_its_all_gather_goes():
    assert [place_of(mode, n_out).value for mode in Mode for n_out in ("full", 4)] == ["ahead", "ahead", "ahead", "behind"]


@pytest.mark.parametrize(("lanes", "nodes"), [(1, 1), (1, 2), (1, 5), (2, 1), (2, 3), pytest.param(2, 5, marks=pytest.mark.slow)])
def test_the_explicit_graph_says_the_same(lanes, nodes):
    for mode, place, n_out in (*GOOD, (SLOT_REUSE, AHEAD, 2)):
        one = step(lanes, mode, place, n_out)
        found = check(one.alone if nodes == 1 else one.several, nodes)
        refused = nodes > 1 and (mode, place, n_out) == (SLOT_REUSE, AHEAD, 2)
        assert found.codes == (("V204",) if refused else ()), (mode, place, n_out, *map(str, found.problems))


def own(program: Program) -> list[tuple[int, ...]]:
    """Where the waits stand that only the step's own text has."""
    return [at.path for at in placed(program) if getattr(at.item, "kind", None) is OpKind.WAIT and at.item.spot.file == STEP_FILE]


@pytest.mark.parametrize(("place", "n_out"), [(AHEAD, "full"), pytest.param(BEHIND, 1, marks=pytest.mark.slow)])
def test_no_wait_of_a_step_can_be_left_out(place, n_out):
    one = step(2, SLOT_REUSE, place, n_out)
    assert len(own(one.alone)) == len(own(one.several)) == 3
    for path in own(one.alone):
        without = replace(one, alone=with_items(one.alone, path, ()))
        assert prove_step(without, nodes=1, first_only=True, answers=ANSWERS).verdict is Verdict.REFUTED
        assert check(without.alone, 1).codes
    for path in own(one.several):
        without = replace(one, several=with_items(one.several, path, ()))
        assert prove_step(without, first_only=True, answers=ANSWERS).verdict is Verdict.REFUTED
        assert check(without.several, 3).codes


def test_a_path_that_is_longer_than_the_search_is_no_race(monkeypatch):
    """From a push to the copies behind the fence of the node there are four waits; the search that follows three finds none, and the explicit graph shows no race."""
    assert DEPTH == 4
    monkeypatch.setattr("tidec.verify.step.DEPTH", 3)
    report = prove_step(step(2, SLOT_REUSE, AHEAD, "full"), nodes=1, first_only=True, answers=ANSWERS)
    assert report.verdict is Verdict.UNKNOWN and report.claims[-1].diagnostic.code == "V901"


def test_of_two_ops_of_one_collective_nothing_is_asked_again():
    one = step(1, SLOT_REUSE, AHEAD, "full")
    spots = {s.op.label: s.op.spot.file for s in statements(one.several)}
    for claim in prove_step(one, answers=ANSWERS).claims:
        if claim.code == "V201" and claim.scope != "M = 1":
            a, b = (x.strip(":,") for x in claim.what.split()[1:3])
            if b in spots:
                assert spots[a] != spots[b] or spots[a] == STEP_FILE, claim.what


def test_claims_of_a_step_are_kept_by_its_class():
    kept: dict[str, str] = {}

    class Kept:
        get = staticmethod(lambda key: kept.get(key, ""))
        put = staticmethod(kept.__setitem__)

    first = prove_step(step(1, SLOT_REUSE, BEHIND, 1), store=Kept)
    again = prove_step(step(1, SLOT_REUSE, BEHIND, 1), store=Kept)
    assert (first.from_store, again.from_store, len(kept)) == (False, True, 2)
    assert [(c.code, c.what) for c in first.claims] == [(c.code, c.what) for c in again.claims]
    assert not prove_step(step(1, SLOT_REUSE, AHEAD, 1), store=Kept).from_store
