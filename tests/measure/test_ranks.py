"""The processes of a measurement: who starts ranks measures nothing, and a rank measures between the first meeting and the last."""
from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")


@pytest.fixture
def ranks(program, monkeypatch):
    """The module, whose ranks are this process; and what happens in it, in order."""
    of, happens = program("ranks"), []
    monkeypatch.setattr(of, "joined", lambda target, **rest: happens.append(("joined", target, rest)) or SimpleNamespace(control="control"))
    monkeypatch.setattr(of, "opened", lambda path, target, here: happens.append(("opened", str(path))) or "what is opened")
    monkeypatch.setattr(of.dist, "barrier", lambda group: happens.append(("barrier", group)))
    monkeypatch.setattr(of.dist, "destroy_process_group", lambda: happens.append(("over",)))
    return of, happens


def measured(of, happens, *given: str) -> int:
    return of.measured_by("program.py", given, of.of_bundle("about", out="out.json"), lambda options, here, found: happens.append(("measured", options.ctas, options.out, here.control, found)))


@pytest.mark.parametrize("code", [0, 3])
def test_who_starts_the_ranks_ends_as_they_do_and_measures_nothing(ranks, monkeypatch, code):
    of, happens = ranks
    monkeypatch.setattr(of, "start", lambda program, given, *, ranks, limit_s: happens.append((program, *given, ranks, limit_s)) or code)
    assert measured(of, happens, "bundle", "--ranks", "4", "--limit", "70") == code
    assert happens == [("program.py", "bundle", "--ranks", "4", "--limit", "70", 4, 70.0)]


def test_a_rank_measures_between_the_first_meeting_and_the_last(ranks, monkeypatch):
    of, happens = ranks
    monkeypatch.setattr(of, "start", lambda *given, **rest: None)
    assert measured(of, happens, "bundle", "--target", "host", "--ctas", "4", "--seed", "7", "--deadline", "9") == 0
    assert happens == [("joined", "host", {"deadline_s": 9.0, "seed": 7}), ("opened", "bundle"), ("measured", "4", "out.json", "control", "what is opened"), ("barrier", "control"), ("over",)]
