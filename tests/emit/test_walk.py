"""What the statements of a walk are."""
import re

import pytest

from tidec.emit.names import lines
from tidec.emit.walk import Constants, Scan
from tidec.errors import TidecError
from tidec.schedule.branch import branch
from tidec.schedule.tracer import trace
from tidec.schedule.idioms import NODE, Block


def walked(function, nodes, lanes=2, **knobs):
    program = branch(trace(function, function.__name__, lanes, __file__, "s.py", **knobs), nodes)
    return [re.sub(r" +// s\.py:.*", "", line) for line in lines(Scan(program, nodes))]


def test_loops_conditions_and_levels_are_those_of_the_text():
    def small(s):
        M, (n, j), e = s.nodes, s.here, s.call
        ready = s.flag("ready", NODE, p=(0, 3))
        with s.stream("net"):
            for p in s.serial("p", 0, 3):
                for i in s.all_lanes("i"):
                    with s.when(i.ne(j)): s.signal(ready[p].at(n, i))
            s.join()

    # Level: call * 3 + p + 1, for the box of three.
    assert walked(small, 4) == [
        "  for (int64_t p = 0; p < 3; ++p) {",
        "    const int64_t level = 3 * e + p + 1;",
        "    for (int64_t i = 0; i < L; ++i) if (i != j) ops.signal(kNet, kReady().at(n, i), level);",
        "  }",
        "  ops.join(kNet);",
    ]


def test_what_never_runs_is_left_out_and_what_runs_once_is_no_loop():
    def small(s):
        M, (n, j), e = s.nodes, s.here, s.call
        done = s.flag("done", q=(0, 4))
        with s.stream("net"):
            for q in s.serial("q", 1, M - 2): s.signal(done[q])
            with s.when(M > 5): s.wait(done.call(e - 1)[0])

    assert walked(small, 3) == []
    assert walked(small, 4) == ["  // q = 1", "  ops.signal(kNet, kDone().at(n, j), 4 * e + 2);"]
    assert walked(small, 6)[-1] == "  ops.wait(kNet, kDone().by(n, j), 4 * e - 3);"


def test_an_unordered_set_is_bracketed_once():
    def small(s):
        n, j = s.here
        a = s.buffer("a", Block.PARTIAL, slot=4)
        with s.stream("copy"):
            for o in s.each_lane("o"):
                for k in s.each("k", 0, 2): s.copy(a[k], a[k + 2].at(n, o))
            s.join()

    assert walked(small, 1) == [
        "  ops.begin_set(kCopy);",
        "  for (int64_t o = 0; o < L; ++o) {",
        "    for (int64_t k = 0; k < 2; ++k) ops.copy(kCopy, kA(k).at(n, j), kA(k + 2).at(n, o));",
        "  }",
        "  ops.end_set(kCopy);",
        "  ops.join(kCopy);",
    ]


def test_a_loop_may_have_a_name_that_cpp_does_not_allow():
    def small(s):
        n, j = s.here
        done = s.flag("done", x=(0, 3))
        with s.stream("net"):
            for q in s.serial("new", 0, 3): s.signal(done[q])

    assert walked(small, 1) == ["  for (int64_t new_ = 0; new_ < 3; ++new_) ops.signal(kNet, kDone().at(n, j), 3 * e + new_ + 1);"]


def test_two_things_of_one_name_have_two_constants():
    def small(s):
        n, j = s.here
        s.signal_to = s.flag("net")
        all_ = s.buffer("all", Block.PARTIAL, slot=1)
        with s.stream("net"):
            s.signal(s.signal_to.at(n, j))
            s.zero(all_[0])

    constants = Constants(branch(trace(small, "small", 1, __file__, "s.py"), 1))
    assert (constants.flag("net"), constants.stream("net"), constants.buffer("all")) == ("kNet", "kNetStream", "kAllBuffer")


def test_a_run_that_has_no_strided_form_is_refused_with_its_line():
    def small(s):
        M, (n, j), e = s.nodes, s.here, s.call
        shard = s.buffer("stage", Block.SHARD, slot=8)
        land = s.output("land", Block.PLACED, bank=2, node=M, lane=1)
        with s.stream("scatter"):
            for k in s.run("k", 0, 3): s.copy(shard[2 * k], land[e % 2, k, j])
            s.join()

    with pytest.raises(TidecError) as caught:
        walked(small, 4, lanes=1)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E004" and "run over k" in diagnostic.sentence and diagnostic.spots[0].line > 0
