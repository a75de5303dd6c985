"""Faults: each is one change of the program, has a name of its own, and gives a program that the checkers can read."""
from __future__ import annotations

from collections import Counter

import pytest

from tidec.interpret.edits import placed, rewrites, sites, with_items
from tidec.interpret.faults import Kind, faults
from tidec.interpret.machine import simulate
from tidec.index import symbol, text, wrap
from tidec.schedule.catalog import traced
from tidec.schedule.program import Op, OpKind, digest, statements
from tidec.verify.graph import check

CLASSES = [("ring_ag", 2, {}), ("tide_ag", 2, {}), ("tide_ag", 3, dict(cast=True, multicast=True)), ("tide_rs", 2, dict(W=1, k=1, n_part=2)), ("tide_rs", 1, dict(W=1, k=1))]


def test_a_tree_is_changed_in_one_node_at_a_time():
    n, M = symbol("n"), symbol("M")

    def more(x):
        if type(x) is int:
            yield x + 1

    assert [text(x) for x in rewrites(wrap(n * 2 + 3, M), more)] == ["wrap(3 * n + 3, M)", "wrap(2 * n + 4, M)"]


def test_a_wait_has_a_site_for_each_thing_it_names():
    program = traced("ring_ag", 2)
    (wait,) = [s.op for s in statements(program) if s.op.waits and s.op.waits[0].flag == "have"]
    assert [s.words for s in sites(wait)] == ["awaits have key 0", "awaits have node", "awaits have lane", "awaits have of call"]
    moved = next(iter(sites(wait))).put(7)
    assert moved.waits[0].key == (7,) and moved.waits[0].node is wait.waits[0].node


def test_ops_are_numbered_anew_where_one_goes():
    program = traced("ring_ag", 2)
    at = next(x for x in placed(program) if isinstance(x.item, Op) and x.item.kind is OpKind.COPY)
    ids = [s.op.id for s in statements(with_items(program, at.path, ()))]
    assert ids == list(range(len(statements(program)) - 1))


@pytest.mark.parametrize(("name", "lanes", "knobs"), CLASSES)
def test_every_fault_changes_the_program_and_has_a_name_of_its_own(name, lanes, knobs):
    program = traced(name, lanes, **knobs)
    found = faults(program)
    before, kinds = digest(program), Counter(f.kind for f in found)
    assert len({f.description for f in found}) == len(found) > 100 and len(kinds) >= 15
    # All of the short program, and every twelfth of the others.
    same = [f.description for f in found[:: 1 if name == "ring_ag" else 12] if digest(f.apply(program)) == before]
    assert not same
    assert digest(program) == before


def test_every_kind_is_met():
    met = {f.kind for name, lanes, knobs in CLASSES for f in faults(traced(name, lanes, **knobs))}
    assert met == set(Kind)


@pytest.mark.parametrize(("name", "lanes", "knobs"), CLASSES[:2])
def test_most_faults_show_on_two_nodes(name, lanes, knobs):
    program = traced(name, lanes, **knobs)
    mutants = [f.apply(program) for f in faults(program)[::9]]
    wrong = sum(not (check(m, 2, calls=3).is_clean and simulate(m, 2, calls=2).is_ok) for m in mutants)
    assert wrong > len(mutants) // 3
