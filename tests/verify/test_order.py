"""Completeness: a wait or a join of a shipped schedule that is left out is refuted, except those of a stated table."""
from collections import Counter
from dataclasses import replace

import pytest

from tidec.schedule.catalog import traced
from tidec.schedule.branch import specialise
from tidec.schedule.program import Op, OpKind, Program, statements
from tidec.verify.graph import check
from tidec.verify.obligation import Verdict
from tidec.verify.prove import prove
from tidec.verify.solver import Answers

# Every form of a schedule that has waits of its own: with several passes, a partial outbox, chunks, stripes, multicast, and one lane.
PROGRAMS = [
    ("ring_ag", 4, {}), ("tide_ag", 4, {}), ("tide_ag", 4, {"cast": True}), ("tide_ag", 4, {"landings": 1}), ("tide_ag", 4, {"multicast": True}),
    ("tide_ag", 4, {"cast": True, "multicast": True}), ("tide_ag", 1, {}), ("tide_rs", 4, {"W": 2, "k": 1}), ("tide_rs", 4, {"W": 2, "k": 1, "n_stg": 1}),
    ("tide_rs", 2, {"W": 1, "k": 1, "n_out": 1}), ("tide_rs", 2, {"W": 1, "k": 1, "n_part": 2}), ("tide_rs", 2, {"W": 1, "k": 1, "n_part": 2, "n_out": 2}),
    ("tide_rs", 2, {"W": 1, "k": 1, "chunks": 4, "stripes": 2}), ("tide_rs", 2, {"W": 2, "k": 1, "multicast": True}), ("tide_rs", 1, {"W": 1, "k": 1}),
    ("tide_rs", 1, {"W": 1, "k": 1, "n_part": 2, "n_out": 1}),
]
SINGLE_COPY = "the set that it ends is a single multicast copy: nothing is out of order"
OWN_FENCE = "the only lane is the node: the fence is met by the rank itself, on the stream that waits for it"
# What may be left out, by program and by name (see `named`), in every branch that has it: the verdict without it, and why it is not needed.
REDUNDANT = {
    ("tide_ag", 4, "multicast=True", "join 1"): (Verdict.PROVED, SINGLE_COPY),
    ("tide_ag", 4, "cast=True multicast=True", "join 1"): (Verdict.PROVED, SINGLE_COPY),
    ("tide_rs", 1, "W=1 k=1", "wait ready"): (Verdict.PROVED, OWN_FENCE),
    ("tide_rs", 1, "W=1 k=1", "wait landed"): (Verdict.PROVED, OWN_FENCE),
    ("tide_rs", 1, "W=1 k=1 n_part=2 n_out=1", "wait ready"): (Verdict.PROVED, OWN_FENCE),
    ("tide_rs", 1, "W=1 k=1 n_part=2 n_out=1", "wait landed"): (Verdict.PROVED, OWN_FENCE),
    ("tide_rs", 1, "W=1 k=1 n_part=2 n_out=1", "wait placed"): (
        Verdict.UNKNOWN, "a late sum waits for a put of the call before, which is behind the copy of the spare: further than a path is followed"),
}
ANSWERS = Answers()        # most claims of a program stand when one wait is left out


def without(program: Program, op_id: int) -> Program:
    def cut(items):
        return tuple(
            item if isinstance(item, Op) else replace(item, body=cut(item.body))
            for item in items if not (isinstance(item, Op) and item.id == op_id)
        )

    return replace(program, body=cut(program.body))


def named(name: str, lanes: int, knobs: dict, single_node: bool) -> dict[int, str]:
    """The waits and joins of a branch, by op id: `wait` and its flag, or `join`; the nth of the same flag, and every join, with its number in the text."""
    ops = [s.op for s in statements(traced(name, lanes, **knobs)) if s.op.kind in (OpKind.WAIT, OpKind.JOIN)]
    names, times = {}, Counter()
    for op in sorted(ops, key=lambda op: op.id):
        word = " ".join([op.kind.value, *(w.flag for w in op.waits)])
        times[word] += 1
        names[op.id] = word if op.kind is OpKind.WAIT and times[word] == 1 else f"{word} {times[word]}"
    there = {s.op.id for s in statements(specialise(traced(name, lanes, **knobs), single_node))}
    return {i: word for i, word in names.items() if i in there}


def verdict(name: str, lanes: int, knobs: dict, op_id: int, single_node: bool) -> Verdict:
    """The prover's of a program without that op, at M = 1 or at every M."""
    program = without(traced(name, lanes, **knobs), op_id)
    return prove(program, first_only=True, answers=ANSWERS, **({"nodes": 1} if single_node else {})).verdict


def not_refuted(name: str, lanes: int, knobs: dict, single_node: bool) -> dict[str, Verdict]:
    """What of a branch can be left out, and the verdict. The explicit graph of such a program must show nothing either."""
    found = {}
    for op_id, word in named(name, lanes, knobs, single_node).items():
        said = verdict(name, lanes, knobs, op_id, single_node)
        if said is not Verdict.REFUTED:
            found[word] = said
            for nodes in (1,) if single_node else (2, 3, 4, 5):
                assert not check(without(traced(name, lanes, **knobs), op_id), nodes).problems, f"{word} of {name} {lanes} {knobs} at M = {nodes}"
    return found


def stated(name: str, lanes: int, knobs: dict, single_node: bool) -> dict[str, Verdict]:
    """What the table says of a branch."""
    there = named(name, lanes, knobs, single_node).values()
    key = (name, lanes, " ".join(f"{k}={v}" for k, v in knobs.items()))
    return {word: said for (*of, word), (said, _) in REDUNDANT.items() if tuple(of) == key and word in there}


@pytest.mark.parametrize(("name", "lanes", "knobs"), PROGRAMS, ids=lambda x: str(x))
def test_what_is_redundant_on_one_node_is_what_the_table_says(name, lanes, knobs):
    assert not_refuted(name, lanes, knobs, single_node=True) == stated(name, lanes, knobs, single_node=True)


@pytest.mark.parametrize(
    ("name", "lanes", "knobs"), [pytest.param(*p, marks=pytest.mark.slow if p[0] == "tide_rs" else ()) for p in PROGRAMS], ids=lambda x: str(x))
def test_what_is_redundant_on_several_nodes_is_what_the_table_says(name, lanes, knobs):
    assert not_refuted(name, lanes, knobs, single_node=False) == stated(name, lanes, knobs, single_node=False)


def test_the_table_names_waits_that_are_there():
    there = {(name, lanes, " ".join(f"{k}={v}" for k, v in knobs.items()), word)
             for name, lanes, knobs in PROGRAMS for single_node in (True, False) for word in named(name, lanes, knobs, single_node).values()}
    assert set(REDUNDANT) <= there
