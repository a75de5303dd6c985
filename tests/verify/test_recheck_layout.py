"""Every number of a plan's layout is computed again from the shapes, and another one is refused."""
from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest

from tidec.errors import TidecError
from tidec.verify.recheck_layout import Facts, check_layout, layout_of

NUMBERS = ("params", "shard_bytes", "packed_elems", "sub_slices", "arena")
SHAPE = ("name", "rows", "row_elems", "is_trainable", "stored", "gathered")


def stored(path, stem: str) -> tuple[dict, Facts]:
    plan = json.loads((path / f"{stem}.plan.json").read_text())
    return plan, Facts(stem, plan["collective"], plan["nodes"], plan["lanes"], dict(plan["program"]["knobs"]), plan["program"])


def test_a_layout_by_hand(made):
    """3x2, N = 6: [7, 3] gives 2 rows of 3, [33] gives 6; S = 12 + 12 bytes, E = 12 in two sub-slices of 8 and 4."""
    plan, facts = stored(made("3x2"), "block.rs")
    layout = layout_of(plan, facts)
    assert [(p["shard_rows"], p["shard_bytes"], p["start_bytes"], p["packed_start"]) for p in layout["params"]] == [(2, 12, 0, 0), (6, 12, 12, 6)]
    assert layout["sub_slices"] == {"capacity_elems": 8, "num_chunks": 1, "chunk_elems": 8, "bounds": [[[0, 8], [8, 12]]]}
    # A block is 2 rows of 8: 32 bytes of bf16 staged, 64 of fp32 elsewhere; two slots of two, then two banks of two, two of one, two of two.
    assert [(r["name"], r["offset"], r["bytes"]) for r in layout["arena"]["regions"]] == [("stage", 0, 128), ("outbox", 512, 256), ("spare", 1024, 128), ("inbox", 1536, 256)]
    assert (layout["shard_bytes"], layout["packed_elems"], layout["arena"]["bytes"]) == (24, 12, 2048)


@pytest.mark.parametrize(("topo", "settings"), [("3x2", ()), ("1x2", ()), ("3x1", ()), ("1x1", ()), ("3x2", ("chunks=5",)), ("3x2", ("stripes=3", "chunks=6"))])
@pytest.mark.parametrize("stem", ["block.ag", "block.rs", "head.ag", "head.rs"])
def test_the_layout_of_a_plan_is_that_of_its_shapes(topo, settings, stem, made):
    plan, facts = stored(made(topo, *settings), stem)
    assert {key: plan[key] for key in NUMBERS} == layout_of(plan, facts)
    check_layout(plan, layout_of(plan, facts), facts)


def leaves(value: object, path: tuple = ()) -> Iterator[tuple]:
    """The paths of all numbers and truth values that are no shape."""
    if isinstance(value, (dict, list)):
        for key, x in value.items() if isinstance(value, dict) else enumerate(value):
            if not (path[:1] == ("params",) and key in SHAPE):
                yield from leaves(x, (*path, key))
    elif isinstance(value, int):
        yield path


@pytest.mark.parametrize("stem", ["block.ag", "head.ag", "block.rs"])
def test_any_other_number_is_refused_and_named(stem, made):
    plan, facts = stored(made("3x2"), stem)
    layout = layout_of(plan, facts)
    paths = list(leaves({key: plan[key] for key in NUMBERS}))
    assert len(paths) > 30
    for path in paths:
        wrong = copy.deepcopy(plan)
        place = wrong
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = not place[path[-1]] if isinstance(place[path[-1]], bool) else place[path[-1]] + 1
        with pytest.raises(TidecError) as caught:
            check_layout(wrong, layout, facts)
        assert caught.value.diagnostics[0].code == "V402" and f"{path[0]}" in str(caught.value)


def test_one_is_not_true(made):
    plan, facts = stored(made("3x2"), "block.rs")
    layout = layout_of(plan, facts)
    plan["arena"]["regions"][0]["is_staging"] = 1
    with pytest.raises(TidecError, match="is_staging"):
        check_layout(plan, layout, facts)


@pytest.mark.parametrize("change", [
    lambda p: p["buffers"][0]["dims"][2].update(hi=3), lambda p: p["buffers"].pop(), lambda p: p["buffers"][0].update(kind="temp"), lambda p: p["buffers"][0]["dims"][0].update(lo=1, hi=2),
    lambda p: p["buffers"][0]["dims"].append(p["buffers"][0]["dims"][0]),
], ids=["a sub-slice more", "no output", "an input of our own", "parts from 1", "a dimension more"])
def test_what_the_caller_gives_and_takes_is_as_large_as_the_collective_says(change, made):
    plan, facts = stored(made("3x2"), "block.rs")
    change(plan["program"])
    with pytest.raises(TidecError, match="V402"):
        layout_of(plan, facts)


def test_a_layout_past_64_bits_is_refused(made):
    plan, facts = stored(made("3x2"), "block.rs")
    plan["params"][0].update(rows=2**61)
    with pytest.raises(TidecError, match="64-bit"):
        layout_of(plan, facts)


# ---- what a compiler might lay out by mistake, everywhere alike


def restarted(plan: dict, shard_rows, start) -> None:
    """Every number of the parameters with R rows a rank by `shard_rows(p, N)`, behind each other by `start(p)` bytes of a shard."""
    at, packed = 0, 0
    for p in plan["params"]:
        p["shard_rows"] = shard_rows(p, plan["nodes"] * plan["lanes"])
        p["shard_elems"] = p["shard_rows"] * p["row_elems"]
        p["shard_bytes"] = 2 * p["shard_elems"]
        p.update(start_bytes=at, packed_start=packed)
        at, packed = at + start(p), packed + p["shard_elems"]
    plan.update(shard_bytes=at, packed_elems=packed)


def ceiled(p: dict, ranks: int) -> int:
    return -(-p["rows"] // ranks)


def rank_major(plan: dict, *inner: int) -> None:
    landing = next(r for r in plan["arena"]["regions"] if r["name"] == "landing")
    landing["strides"] = [*landing["strides"][:1], *inner]


def cut_by(plan: dict, capacity: int, end: int) -> None:
    plan["sub_slices"].update(capacity_elems=capacity, bounds=[[[min(i * capacity, end), min((i + 1) * capacity, end)] for i in (0, 1)]])


# By name: the plan, the change, and the number at which the checker stops. 3x2 of [7, 3] and [33] in bf16: S = 24 bytes, E = 12 in two sub-slices.
LAYOUT_MUTANTS = {
    "R = floor(D / N)": ("block.ag", lambda p: restarted(p, lambda q, ranks: q["rows"] // ranks, lambda q: q["shard_bytes"]), "params[0]"),
    "prefix by D_p, not by N*R_p": ("block.ag", lambda p: restarted(p, ceiled, lambda q: q["rows"] * q["row_elems"] * 2 // 6), "params[1].start_bytes"),
    "rank-major landing": ("block.ag", lambda p: rank_major(p, 2 * 24, 24), "strides"),
    "pitch of nodes L*S": ("block.ag", lambda p: rank_major(p, 2 * 24), "strides"),
    "E_sub = floor(E / (n_part*L)) in whole rows": ("block.rs", lambda p: (cut_by(p, 0, 12), p["sub_slices"].update(chunk_elems=0)), "sub_slices"),
    "E_sub = floor(E / (n_part*L))": ("block.rs", lambda p: (cut_by(p, 6, 12), p["sub_slices"].update(chunk_elems=6)), "sub_slices.bounds"),
    "no clip at E": ("block.rs", lambda p: cut_by(p, 8, 16), "sub_slices.bounds"),
    "padding in no shard": ("block.rs", lambda p: p.update(packed_elems=(7 * 3 + 33) // 6), "packed_elems"),
}


@pytest.mark.parametrize("mutant", LAYOUT_MUTANTS)
def test_a_layout_by_another_rule_is_refused(mutant, made):
    stem, change, where = LAYOUT_MUTANTS[mutant]
    plan, facts = stored(made("3x2"), stem)
    layout = layout_of(plan, facts)
    check_layout(plan, layout, facts)
    change(plan)
    with pytest.raises(TidecError) as caught:
        check_layout(plan, layout, facts)
    assert caught.value.diagnostics[0].code == "V402" and where in str(caught.value), str(caught.value)
