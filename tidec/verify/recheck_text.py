"""The text of a plan, taken apart before it is read: what stands before its program, the program, what stands behind it, and its wait edges.

Canonical JSON escapes the quotes in its strings, so that a key with its quotes is found by its letters. A program that is a theorem is known by its text,
and then only what an op table and a layout are made from is read of it.
"""
from __future__ import annotations

from typing import NamedTuple

from tidec.verify.recheck_files import spelt
from tidec.verify.recheck_index import ORDERING
from tidec.verify.recheck_theorems import Theorems, branch_digest, without_spots

_BEFORE, _BEHIND, _WAITS, _KNOBS, _LANES = ',"program":', ',"schema":"', ',"waits":', ',"knobs":', ',"lanes":'
_COVERS, _NAME, _FOUND, _BUFFER = ',"covers":[', ',"is":"program"', ',"found":', ',"is":"buffer"'
_OP, _KIND, _WORDS, _WRITES, _NOTHING = '{"context":', '"kind":"', ',"words":', ',"writes":', '"writes":[]'


class Parts(NamedTuple):
    """Of one plan: the text up to its program, the program, the text up to its wait edges, and these; `}` is left out."""

    head: str
    program: str
    tail: str
    waits: str


class Known(NamedTuple):
    """A plan whose program is a theorem. plan: without its wait edges, and of its program what an op table and a layout are made from, with its knobs."""

    plan: dict
    parts: Parts
    knobs: str


def take_apart(text: str) -> Parts | None:
    """The parts of a plan; `None` where it is not spelt as plans are."""
    at = text.find(_BEFORE)
    end = text.rfind(_WAITS)
    behind = text.rfind(_BEHIND, at, end)
    if not 0 < at < behind < end or not text.endswith("}"):
        return None
    return Parts(text[:at], text[at + len(_BEFORE) : behind], text[behind:end], text[end + len(_WAITS) : -1])


def known_theorem(file: str, text: str, theorems: Theorems) -> Known | None:
    """The plan, if its program with its wait edges is a theorem. Raises C001 where something around the program is no JSON."""
    parts = take_apart(text)
    if parts is None:
        return None
    before, name, rest = parts.program.partition(_NAME)
    knobs, lanes, rest = rest[len(_KNOBS) :].partition(_LANES) if rest.startswith(_KNOBS) else ("", "", "")
    program = without_spots(f"{before}{name}{lanes}{rest}") if lanes else ""
    if not program:
        return None
    plan = spelt(file, f"{parts.head}{parts.tail}}}")
    if branch_digest(program, parts.waits, single_node=plan["nodes"] == 1) not in theorems.classes:
        return None
    plan["program"] = {**spelt(file, _moves(program)), "knobs": spelt(file, f'{{"knobs":{knobs}}}')["knobs"]}
    return Known(plan, parts, knobs)


def _moves(program: str) -> str:
    """The text of a theorem without its covers and flags and without what is told of buffers and ops; of ops that move nothing only the kind is left."""
    before, *buffers = program[: program.rindex(_COVERS)].split(_FOUND)
    first, *ops = before.split(_OP)
    found = [first]
    for op in ops:
        at = op.index(_KIND) + len(_KIND)
        kind = op[at : op.index('"', at)]
        if kind in ORDERING:
            found.append(f'{{"is":"op","kind":"{kind}"{op[op.index("}", op.index(_NOTHING)) :]}')
        else:
            found.append(f"{_OP}{op[: op.index(_WORDS)]}{op[op.index(_WRITES) :]}")
    found += [b[b.index(_BUFFER) :] for b in buffers]
    return f"{''.join(found)}{program[program.rindex(_NAME) :]}"
