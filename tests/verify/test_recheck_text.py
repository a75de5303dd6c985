"""The text of a plan is cut where its keys stand and nowhere else, and what is read of a theorem is what the whole plan says."""
from __future__ import annotations

import json

import pytest

from tidec.verify.recheck_index import ORDERING, families
from tidec.verify.recheck_text import Parts, known_theorem, take_apart
from tidec.verify.recheck_theorems import canonical, load


def test_a_plan_is_taken_apart_by_hand():
    text = '{"params":[],"program":{"a":1},"schema":"s","waits":[3]}'
    assert take_apart(text) == Parts('{"params":[]', '{"a":1}', ',"schema":"s"', "[3]")
    for other in (text[:-1], text.replace("program", "programme"), text.replace("waits", "weights"), '{"params":[],"schema":"s","program":{"a":1},"waits":[3]}', ""):
        assert take_apart(other) is None


def test_a_name_that_looks_like_a_key_is_no_place_to_cut():
    names = [',"program":{', '"waits":[', ',"schema":"', '\\,"program":', '"']
    plan = {"arena": names, "params": names, "program": {"x": names}, "schema": "s", "sub_slices": names, "waits": names}
    head, program, tail, waits = take_apart(canonical(plan))
    assert json.loads(program) == plan["program"] and json.loads(waits) == names
    assert json.loads(f"{head}{tail}}}") == {key: plan[key] for key in ("arena", "params", "schema", "sub_slices")}


@pytest.mark.parametrize("topo", ["3x2", "1x2", "3x1"])
@pytest.mark.parametrize("stem", ["block.ag", "head.ag", "block.rs"])
def test_what_is_read_of_a_theorem_is_what_the_plan_says(topo, stem, made):
    text = (made(topo) / f"{stem}.plan.json").read_text()
    whole, known = json.loads(text), known_theorem("p", text, load())
    program = known.plan["program"]
    assert {key: known.plan[key] for key in known.plan if key != "program"} == {key: whole[key] for key in whole if key not in ("program", "waits")}
    assert all(program[key] == whole["program"][key] for key in ("name", "lanes", "knobs", "premises", "streams")) and known.parts.waits == canonical(whole["waits"])
    for short, long in zip(program["buffers"], whole["program"]["buffers"], strict=True):
        assert all(short[key] == long[key] for key in ("name", "kind", "block", "dims"))
    for one, other in zip(families(program["body"]), families(whole["program"]["body"]), strict=True):
        assert one.op["kind"] == other.op["kind"] and one.places == other.places
        if one.op["kind"] not in ORDERING:
            assert all(one.op[key] == other.op[key] for key in ("reads", "writes", "raises", "seed", "context", "stream"))
            assert [item.get("name", item.get("cond")) for item in one.path] == [item.get("name", item.get("cond")) for item in other.path]


@pytest.mark.parametrize("change", [
    lambda text: text.replace('"is":"program","knobs":[', '"is":"program"[', 1),
    lambda text: text.replace('"is":"program","knobs":[', '"is":"program","knobs":7,"knobs":[', 1),
    lambda text: text.replace('"kind":"put"', '"kind":"copy"', 1),
    lambda text: text.replace('"waits":[{"', '"waits":[{"x":1,"', 1),
    lambda text: text.replace('"spot":["', '"spot":["\\\\', 1),
    lambda text: text.replace('"covers":[', '"cover":[', 1),
], ids=["knobs without a key", "knobs twice", "another op", "another wait edge", "an escaped letter in a line", "another key"])
def test_a_text_that_is_no_theorem_is_not_taken_for_one(change, made):
    text = (made("3x2") / "block.rs.plan.json").read_text()
    assert known_theorem("p", text, load()) is not None and change(text) != text
    found = known_theorem("p", change(text), load())
    assert found is None or canonical(found.plan["program"]["knobs"]) != found.knobs      # which `recheck` holds against each other
