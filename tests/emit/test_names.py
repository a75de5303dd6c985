"""Which values of a walk get a name, and where they are defined."""
import re

import pytest

from tidec.emit.names import lines
from tidec.emit.walk import Scan
from tidec.schedule.branch import branch
from tidec.schedule.catalog import traced
from tidec.schedule.idioms import RAIL, Block, back, least, where, wrap
from tidec.schedule.program import statements
from tidec.schedule.tracer import trace


def walked(function, nodes, lanes=2, **knobs):
    program = branch(trace(function, function.__name__, lanes, __file__, "s.py", **knobs), nodes)
    return [re.sub(r" +// s\.py:.*", "", line) for line in lines(Scan(program, nodes))]


def test_a_value_that_a_loop_does_not_change_is_defined_outside_it():
    def small(s):
        M, (n, j), e = s.nodes, s.here, s.call
        have = s.flag("have", RAIL, on=dict(h=(1, M)), k=(0, 4))
        with s.stream("rail"):
            for h in s.serial("h", 1, M):
                for k in s.serial("k", 0, 4): s.signal(have[h, k].at(wrap(n + h, M), j))
                for k in s.serial("k", 0, 4): s.wait(have[h, k].by(back(n - h, M), j))

    assert walked(small, 5) == [
        "  for (int64_t h = 1; h < M; ++h) {",
        "    const int64_t peer = wrap(n + h, M);",
        "    for (int64_t k = 0; k < 4; ++k) ops.signal(kRail, kHave(h).at(peer, j), 4 * e + k + 1);",
        "    const int64_t peer_1 = back(n - h, M);",
        "    for (int64_t k = 0; k < 4; ++k) ops.wait(kRail, kHave(h).by(peer_1, j), 4 * e + k + 1);",
        "  }",
    ]


def test_no_value_takes_the_name_of_a_loop_inside():
    # The first dimension would call its value `o`, which the loop below is called.
    def small(s):
        n, j = s.here
        a = s.buffer("a", Block.PARTIAL, o=4)
        with s.stream("copy"):
            for o in s.all_lanes("o"):
                s.copy(a[where(j >= 1, 3, 0)], a[where(j >= 1, 3, 0)])
            s.join()

    assert walked(small, 1)[0] == "  const int64_t a_o = j >= 1 ? 3 : 0;"


def test_a_shared_value_has_one_name_and_a_simple_one_none():
    def small(s):
        M, (n, j), e = s.nodes, s.here, s.call
        box = s.buffer("box", Block.PARTIAL, bank=2, slot=9)
        with s.stream("copy"):
            for c in s.serial("c", 0, 4): s.copy(box[e % 2, c + 1], box[e % 2, c + 2])

    assert walked(small, 5) == [
        "  const int64_t bank = e % 2;",
        "  for (int64_t c = 0; c < 4; ++c) ops.copy(kCopy, kBox(bank, c + 1).at(n, j), kBox(bank, c + 2).at(n, j));",
    ]


def test_a_value_with_cases_has_a_name_and_a_chain_of_cases_only_one():
    def small(s):
        M, (n, j), e = s.nodes, s.here, s.call
        box = s.buffer("box", Block.PARTIAL, slot=9)
        with s.stream("copy"):
            for c in s.serial("c", 0, 9):
                s.zero(box[where(c < 2, 0, where(c < 4, 3, 5))])
            s.zero(box[least(n, 3)])

    assert walked(small, 5) == [
        "  for (int64_t c = 0; c < 9; ++c) {",
        "    const int64_t slot = c < 2 ? 0 : c < 4 ? 3 : 5;",
        "    ops.zero(kCopy, kBox(slot).at(n, j));",
        "  }",
        "  ops.zero(kCopy, kBox(least(n, 3)).at(n, j));",
    ]


def test_a_value_under_a_condition_is_defined_before_it():
    def small(s):
        M, (n, j), e = s.nodes, s.here, s.call
        box = s.buffer("box", Block.PARTIAL, slot=9)
        with s.stream("copy"):
            with s.when(n.ne(0)):
                s.zero(box[where(j < 1, 2, 4)])
                s.join()

    assert walked(small, 5) == [
        "  const int64_t slot = j < 1 ? 2 : 4;", "  if (n != 0) {", "    ops.zero(kCopy, kBox(slot).at(n, j));", "    ops.join(kCopy);", "  }",
    ]


def test_a_long_statement_is_cut_where_it_says():
    text = lines(Scan(branch(traced("tide_rs", 8, W=8, k=4), 8), 8))
    puts = [i for i, line in enumerate(text) if "ops.put(" in line]
    assert len(puts) == 1 and text[puts[0]].split("//")[0].rstrip().endswith(",") and text[puts[0] + 1].lstrip().startswith("kArrived(")
    # Both lines name the line of the schedule.
    assert text[puts[0]].split("//")[1] == text[puts[0] + 1].split("//")[1]


@pytest.mark.parametrize(("name", "knobs"), [("tide_ag", dict(cast=True)), ("tide_rs", dict(W=2, k=1, n_part=2, n_out=2)), ("tide_rs", dict(W=4, k=2, multicast=True))])
@pytest.mark.parametrize("nodes", [1, 2, 7])
def test_every_line_names_a_line_of_the_schedule(name, knobs, nodes):
    program = branch(traced(name, 4, **knobs), nodes)
    known = {f"schedules/{name}.py:{line}" for line in range(1, 200)}
    text = lines(Scan(program, nodes))
    for line in text:
        if line.strip() != "}":
            code, _, comment = line.rpartition("// ")
            assert code.strip() and comment.split(" from ")[0] in known, line
    # Every op of the schedule that can run is there.
    told = {line.rpartition("// ")[2].split(" from ")[0] for line in text}
    assert {str(s.op.spot) for s in statements(program) if nodes == 7} <= told
