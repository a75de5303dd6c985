"""The op tables against the closed forms: what every rank moves is compared, and any other move is refused by the name of what it breaks."""
from __future__ import annotations

import copy
import json

import pytest

from tidec.errors import TidecError
from tidec.verify.recheck_gather import check_all_gather
from tidec.verify.recheck_index import families
from tidec.verify.recheck_layout import Facts
from tidec.verify.recheck_reduce import check_reduce_scatter, forms


def facts_of(path, stem: str) -> Facts:
    plan = json.loads((path / f"{stem}.plan.json").read_text())
    return Facts(stem, plan["collective"], plan["nodes"], plan["lanes"], dict(plan["program"]["knobs"]), plan["program"])


def check(facts: Facts) -> None:
    """Every rank, in an even and an odd call."""
    for n in range(facts.nodes):
        for j in range(facts.lanes):
            for e in (6, 7):
                (check_all_gather if facts.is_gather else check_reduce_scatter)(facts, (n, j, e), ())


def test_the_closed_forms_by_hand():
    """5 nodes of 4 lanes, W = 4: contributors 1..4 are wave 0 and the own node is wave 1; lane 1 of node 3 sends sub-slice (1 + c) mod 4 to node 3 + c."""
    f = forms(Facts("p", "reduce_scatter", 5, 4, dict(W=4, k=4, n_out=2, n_part=2, n_stg=2), {}), (3, 1, 0))
    assert (f.waves, f.remote, f.blocks) == (2, 8, 2)
    assert f.sends.rows() == [(0, 1, 0), (0, 2, 1), (0, 3, 2), (0, 4, 3), (1, 1, 4), (1, 2, 5), (1, 3, 6), (1, 4, 7)]
    # (U, p, c, J, t, r): two sums that the outbox has room for, the own node in both parts, then the rest.
    assert f.chunks.rows()[:5] == [(0, 0, 1, 0, 4, 1), (1, 0, 2, 1, 0, 2), (2, 0, 5, -1, 3, 0 + 5 % 5), (3, 1, 5, -1, 3, 0), (4, 0, 3, 2, 1, 3)]


@pytest.mark.parametrize(("topo", "settings"), [
    ("2x2", ()), ("3x2", ()), ("5x2", ("W=1", "k=1")), ("3x1", ()), ("1x2", ()), ("3x2", ("n_part=3", "n_out=2")), ("3x2", ("chunks=5",)), ("3x2", ("stripes=3", "chunks=6")),
])
@pytest.mark.parametrize("stem", ["block.ag", "block.rs", "head.ag", "head.rs"])
def test_every_rank_of_a_plan_moves_what_the_closed_forms_say(topo, settings, stem, made):
    check(facts_of(made(topo, *settings), stem))


def moves(facts: Facts) -> list[dict]:
    return [f.op for f in families(facts.program["body"]) if f.op["kind"] in ("put", "copy", "sum", "land", "zero", "cast")]


SMALL = {"5x2": ("W=1", "k=1")}     # five waves, so that blocks go stale


@pytest.mark.parametrize(("topo", "stem", "codes"), [
    ("5x2", "block.rs", {"V105", "V106", "V107"}), ("5x2", "block.ag", {"V105", "V106"}), ("5x2", "head.ag", {"V105", "V106"}), ("1x2", "block.rs", {"V105"}),
])
def test_a_move_whose_address_is_one_off_is_refused(topo, stem, codes, made):
    """Every index of every access of every move, one more than it is."""
    whole = facts_of(made(topo, *SMALL.get(topo, ())), stem)
    seen, num = set(), 0
    for i, op in enumerate(moves(whole)):
        for side in ("reads", "writes"):
            for a, cell in enumerate(op[side]):
                for at in [("key", d) for d in range(len(cell["key"]))] + [("node",), ("lane",)]:
                    program = copy.deepcopy(whole.program)
                    facts = Facts(whole.file, whole.collective, whole.nodes, whole.lanes, whole.knobs, program)
                    place = moves(facts)[i][side][a]
                    for key in at[:-1]:
                        place = place[key]
                    if place[at[-1]] in ("all", "others"):
                        continue
                    place[at[-1]] = ["+", place[at[-1]], 1]
                    with pytest.raises(TidecError) as caught:
                        check(facts)
                        pytest.fail(f"{op['kind']}#{op['id']} {side}[{a}] {at}")
                    seen.add(caught.value.diagnostics[0].code)
                    num += 1
    assert num >= 14 and seen <= codes


def changed(facts: Facts, kind: str, change) -> Facts:
    program = copy.deepcopy(facts.program)
    result = Facts(facts.file, facts.collective, facts.nodes, facts.lanes, facts.knobs, program)
    change(next(f for f in families(program["body"]) if f.op["kind"] == kind))
    return result


CHANGES = {
    "a stale block is not zeroed": ("5x2", "block.rs", "zero", lambda f: f.path[-1].update(cond=False), "V107"),
    "a fresh block is zeroed": ("5x2", "block.rs", "zero", lambda f: f.path[-1].update(cond=True), "V107"),
    "the seed is never": ("3x2", "block.rs", "land", lambda f: f.op.update(seed=False), "V106"),
    "a put keeps another promise": ("3x2", "block.rs", "put", lambda f: f.op["raises"][0]["promise"]["key"].__setitem__(0, 1), "V105"),
    "then and done are exchanged": ("3x2", "block.rs", "put", lambda f: f.op["raises"].reverse(), "V105"),
    "one contributor is left out": ("5x2", "block.rs", "put", lambda f: f.path[-1].update(hi=["-", f.path[-1]["hi"], 1]), "V105"),
    "another RMA context": ("3x2", "block.rs", "put", lambda f: f.op.update(context=1), "V105"),
    "a slot is placed twice": ("3x2", "block.ag", "copy", lambda f: f.path[-1].update(hi=3), "V106"),
    "the landing of another call is read": ("3x2", "block.ag", "read", lambda f: f.op["reads"][0].update(call="e"), "V105"),
    "a shard is not freed": ("3x2", "block.ag", "free", lambda f: f.op.update(kind="wait", writes=[]), "V105"),
    "a round goes the other way": ("5x2", "block.ag", "put", lambda f: f.op["writes"][0].update(node=["wrap", ["+", "n", "h"], "M"]), "V105"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_of_the_table_is_refused(case, made):
    topo, stem, kind, change, code = CHANGES[case]
    with pytest.raises(TidecError) as caught:
        check(changed(facts_of(made(topo, *SMALL.get(topo, ())), stem), kind, change))
    assert caught.value.diagnostics[0].code == code


def test_two_contributors_of_a_wave_in_one_block_are_refused():
    """W = 3 at L = 8 and M = 9: contributors 8 and 9, the own node, are both on diagonal 0."""
    from tidec.schedule.branch import branch
    from tidec.schedule.catalog import traced
    from tidec.schedule.program import jsonable

    program = branch(traced("tide_rs", 8, W=3, k=1), 9)
    facts = Facts("p", "reduce_scatter", 9, 8, dict(W=3, k=1, n_out="full", n_part=1, n_stg=2, chunks=1, stripes=1), jsonable(program))
    with pytest.raises(TidecError, match="V104 exclusive.*contributor 9 of wave 2"):
        check_reduce_scatter(facts, (0, 0, 0), ())


@pytest.mark.parametrize(("name", "value", "code"), [("k", 1, "V105"), ("W", 1, "V105"), ("n_stg", 3, "V105"), ("n_out", 1, "V105"), ("n_part", 2, "V105"), ("stripes", 2, "V105")])
def test_a_program_made_for_another_knob_is_refused(name, value, code, made):
    """Each knob is bound to the table, so that the theorem of one class does not carry a plan that says it is of another."""
    own = facts_of(made("5x2"), "block.rs")
    assert own.knobs[name] != value
    with pytest.raises(TidecError) as caught:
        check(Facts(own.file, own.collective, own.nodes, own.lanes, own.knobs | {name: value} | ({"chunks": 2} if name == "stripes" else {}), own.program))
    assert caught.value.diagnostics[0].code == code


@pytest.mark.parametrize("name", ["cast", "multicast"])
def test_an_all_gather_made_for_another_knob_is_refused(name, made):
    own = facts_of(made("3x2"), "block.ag")
    with pytest.raises(TidecError):
        check(Facts(own.file, own.collective, own.nodes, own.lanes, own.knobs | {name: True}, own.program))
