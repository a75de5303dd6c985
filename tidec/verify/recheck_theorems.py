"""Which classes of programs are theorems: digests of families with their wait edges, all of whose claims z3 proved for every node count.

`theorems.json` is made by `theorems.py` and held against the prover in the tests. A digest covers everything that the prover reads of a branch of
a program: lanes, buffers, flags, streams, ops, covers, premises and the wait edges. It does not cover lines of the schedule's text, nor the
knobs; so neither a comment nor an unused knob makes a theorem void. Of the knobs proofs read the stripes alone, which bound the RMA contexts of puts, and
the op table is held against those.
"""
from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

FILE = "theorems.json"
SCHEMA = "tidec.theorems/1"
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
_SPOTS = re.compile(r'"spot":\["[^"\\]*+"(?:,"[^"\\]*+")*+\]')


@dataclass(frozen=True, slots=True)
class Theorems:
    """What is proved.

    classes: of every digest, which class and branch it is.  codes: of "<collective> M = 1" and "<collective> M >= 2", the codes of claims that every proof
    of it has.  assumes: the axioms, as certificates list them.  assumes_text: their canonical JSON.
    """

    classes: dict[str, str]
    codes: dict[str, list[str]]
    assumes: list
    assumes_text: str


def theorem_digest(program: str, waits: str, *, single_node: bool) -> str:
    """sha256 of one branch of a program, M = 1 or M >= 2, from two texts of canonical JSON: the program without its knobs, and its wait edges.

    Returns 64 hex digits; "" where a line of the schedule is not spelt as lines are, so that nothing else can hide there.
    """
    text = without_spots(program)
    return branch_digest(text, waits, single_node=single_node) if text else ""


def branch_digest(text: str, waits: str, *, single_node: bool) -> str:
    """The same, from a text `without_spots`."""
    return hashlib.sha256(f"{'M = 1' if single_node else 'M >= 2'} {text} {waits}".encode()).hexdigest()


def without_spots(program: str) -> str:
    """A text of canonical JSON with every list of lines of the schedule empty; "" where one is not spelt as they are."""
    text, count = _SPOTS.subn('"spot":[]', program)
    # A key that ends in an escaped quote and spot would be taken for one; where a letter is escaped, or a spot is anything else, nothing is a theorem.
    return "" if "\\" in text or count != text.count('"spot":') else text


def without_knobs(program: dict) -> dict:
    """What a proof reads of a program."""
    return {key: value for key, value in program.items() if key != "knobs"}


def canonical(value: object) -> str:
    """Canonical JSON."""
    return _ENCODER.encode(value)


def load() -> Theorems:
    """The theorems that this version ships."""
    content = json.loads((Path(__file__).parent / FILE).read_bytes())
    assert content["schema"] == SCHEMA
    return Theorems(content["theorems"], content["codes"], content["assumes"], canonical(content["assumes"]))
