"""Files and namespaces for groups of any name."""
import re
from dataclasses import replace

import pytest

from tidec.emit.stems import namespaces, stems
from tidec.inputs.ask import Collective

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER


@pytest.fixture
def plans(proved):
    gather, reduce = proved("2x1", GATHER).plan, proved("2x1", REDUCE).plan

    def make(*named):
        return [replace(reduce if collective is REDUCE else gather, groups=(name,)) for name, collective in named]

    return make


def test_a_file_is_called_after_its_group_and_collective(plans):
    assert stems(plans(("block", GATHER), ("block", REDUCE))) == ("block.ag", "block.rs")
    assert namespaces(("block.ag", "block.rs")) == ("block_ag", "block_rs")


@pytest.mark.parametrize(("name", "want"), [
    ("model.layers.0", "model_layers_0.ag"), ("a/b\\c", "a_b_c.ag"), ("../../etc/passwd", "etc_passwd.ag"), ("größe", "gr_e.ag"), ("層", "group.ag"), ("", "group.ag"),
    (".hidden", "hidden.ag"), ("-rf", "rf.ag"), ("x" * 300, "x" * 64 + ".ag"), ("a\nb", "a_b.ag"), ('a"; b', "a_b.ag"), ("norm+head", "norm_head.ag"),
])
def test_any_name_makes_a_safe_one(plans, name, want):
    assert stems(plans((name, GATHER))) == (want,)


def test_names_that_become_equal_get_a_number(plans):
    made = plans(("a/b", GATHER), ("a b", GATHER), ("A_B", GATHER), ("a_b", REDUCE), ("a_b", GATHER))
    assert stems(made) == ("a_b.ag", "a_b-2.ag", "A_B-3.ag", "a_b.rs", "a_b-4.ag")


def test_a_number_does_not_meet_a_group_of_that_name(plans):
    assert len(set(stems(plans(("a", GATHER), ("a-2", GATHER), ("a", GATHER), ("a-2", GATHER))))) == 4


def test_namespaces_are_identifiers_and_differ(plans):
    names = ("a-b.ag", "a_b.ag", "8.ag", "_x__y.ag", "a_b_ag.ag", "class.ag")
    spaces = namespaces(names)
    assert len(set(spaces)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*", s) for s in spaces), spaces
