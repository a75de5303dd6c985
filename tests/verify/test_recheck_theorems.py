"""`theorems.json` is what the prover proves: every digest by tracing, a few classes proved by default and all with `-m slow`.

`python -m tidec.verify.theorems` writes the file anew.
"""
from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tidec.inputs.knobs import FULL
from tidec.schedule.branch import specialise
from tidec.schedule.catalog import path, traced
from tidec.schedule.program import jsonable
from tidec.size.solver import classes as chosen
from tidec.verify import recheck_theorems
from tidec.verify.recheck_theorems import canonical, load, theorem_digest, without_knobs
from tidec.verify.solver import Answers
from tidec.verify.theorems import Class, classes, digest_of, proved, text_of

CLASSES = list(classes())
ANSWERS = Answers()     # classes have most claims in common
FEW = set(map(str, random.Random(4).sample([c for c in CLASSES if c.lanes < 8], 2)))
FILE = Path(recheck_theorems.__file__).parent / "theorems.json"
AGAIN = "run python -m tidec.verify.theorems, which proves every class again (about 15 minutes on one core)"


def test_the_file_has_exactly_the_classes_that_are_shipped():
    wanted = {digest_of(c.program, single_node=single) for c in CLASSES for single in (True, False)}
    assert load().classes.keys() == wanted, AGAIN
    assert FILE.stat().st_size < 44_000 and len(CLASSES) == len(set(map(str, CLASSES)))


@pytest.mark.parametrize("one", [pytest.param(c, id=str(c), marks=() if str(c) in FEW else pytest.mark.slow) for c in CLASSES])
def test_a_class_is_proved_and_stands_in_the_file(one):
    theorems = load()
    collective = "all_gather" if one.schedule == "tide_ag" else "reduce_scatter"
    for digest, branch, codes in proved(one, ANSWERS):
        assert digest in theorems.classes and codes >= set(theorems.codes[f"{collective} {branch}"]), AGAIN


def test_the_default_knobs_of_every_width_are_theorems():
    names = set(map(str, CLASSES))
    for lanes in (1, 2, 4, 8):
        assert {f"tide_rs L={lanes} W={lanes} k={min(4, lanes)}", f"tide_ag L={lanes} cast=False multicast=True"} <= names
    assert "tide_rs L=8 W=3 k=3" in names and "tide_rs L=8 W=8 k=4 n_part=2" in names


def test_what_the_solver_can_choose_is_a_theorem():
    known = load().classes
    for c in random.Random(3).sample(chosen(), 12):
        n_out = "full" if c.n_out is FULL else c.n_out
        program = traced("tide_rs", c.lanes, W=c.W, k=c.k, n_part=c.n_part, n_out=n_out, chunks=c.chunks)
        assert {digest_of(program, single_node=single) for single in (True, False)} <= known.keys(), (c, AGAIN)


def test_a_class_with_a_claim_that_is_not_proved_is_no_theorem():
    with pytest.raises(ValueError, match="tide_rs L=2 W=2 k=2 n_out=1: (refuted|unknown)"):
        proved(Class("tide_rs", 2, (("W", 2), ("k", 2), ("n_out", 1))))


def test_the_file_names_every_theorem_once_and_the_codes_that_all_proofs_have():
    one, two = CLASSES[0], CLASSES[2]
    many, few = frozenset({"V101", "V201", "V105"}), frozenset({"V201", "V105", "V204"})
    content = json.loads(text_of([(one, (("a" * 64, "M = 1", many), ("b" * 64, "M >= 2", many))), (two, (("a" * 64, "M = 1", few), ("d" * 64, "M >= 2", many)))]))
    assert content["theorems"] == {"a" * 64: f"{one}, M = 1", "b" * 64: f"{one}, M >= 2", "d" * 64: f"{two}, M >= 2"}
    assert content["codes"] == {"all_gather M = 1": ["V105", "V201"], "all_gather M >= 2": ["V101", "V105", "V201"]}
    assert [a["id"] for a in content["assumes"]][:2] == ["T1", "T2"]


def branch_text(program) -> str:
    return canonical(without_knobs(jsonable(specialise(program, False))))


def test_a_comment_in_a_schedule_leaves_its_theorems():
    source = path("tide_ag").read_text(encoding="utf-8")
    moved = traced("tide_ag", 2, source=f"# one more line\n{source}")
    assert branch_text(moved) != branch_text(traced("tide_ag", 2))
    assert digest_of(moved, single_node=False) == digest_of(traced("tide_ag", 2), single_node=False)


@pytest.mark.parametrize(("old", "new"), [
    ('s.signal(released)', 's.signal(released); s.read(land[(e - 1) % 2, ALL, ALL].of(call=e - 1))'), ("GROUPS = 4", "GROUPS = 3"), ("bank=landings, node=M", "bank=landings + 1, node=M"),
    ('with s.stream("update")', 'with s.stream("update2")'), ('s.flag("room", NODE)', 's.flag("room2", NODE)'),
])
def test_any_other_change_of_a_schedule_voids_them(old, new):
    source = path("tide_ag").read_text(encoding="utf-8")
    assert source.count(old) == 1
    assert digest_of(traced("tide_ag", 2, source=source.replace(old, new)), single_node=False) not in load().classes


def test_nothing_hides_where_lines_of_the_schedule_stand():
    """Only a key "spot" with plain strings is left out of a digest; wherever it is anything else there is none."""
    digest = theorem_digest('{"a":1,"spot":["s.py:3"]}', "[]", single_node=True)
    assert digest == theorem_digest('{"a":1,"spot":["t.py:4","u.py:5"]}', "[]", single_node=True) != ""
    assert digest != theorem_digest('{"a":2,"spot":["s.py:3"]}', "[]", single_node=True) != theorem_digest('{"a":2,"spot":["s.py:3"]}', "[]", single_node=False)
    for text in ('{"spot":[{"a":1}]}', '{"spot":["a",1]}', '{"spot":[]}', '{"spot":"x"}', r'{"b\"spot":["x"]}', r'{"spot":["a\\"]}', '{"spot": ["a"]}'):
        assert theorem_digest(text, "[]", single_node=True) == "", text
