"""The explicit graph: by hand on two ranks, then on the shipped schedules."""
from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tidec.schedule.catalog import traced
from tidec.schedule.idioms import ALL, LANES, RAIL, SELF, Block, Schedule, back, wrap
from tidec.schedule.program import Event, OpKind, Program, statements
from tidec.schedule.tracer import trace
from tidec.verify.graph import At, Finding, check, ordered


def program(write: Callable[[Schedule], None], lanes: int = 2) -> Program:
    return trace(write, write.__name__, lanes, __file__, "tests/verify/test_graph.py")


def op(p: Program, kind: OpKind, nth: int = 0) -> int:
    return [s.op.id for s in statements(p) if s.op.kind is kind][nth]


def hand_over(s: Schedule) -> None:
    """Each lane copies its shard to the other lane, says so, and the other one reads it; then it may come again."""
    (n, j), e = s.here, s.call
    shard, there = s.input("shard", Block.SHARD, one=1), s.output("there", Block.SHARD, one=1)
    told, through = s.flag("told", LANES), s.flag("through", LANES)
    with s.stream("copy"):
        s.wait(through.call(e - 1).by(n, 1 - j))
        s.copy(shard[0], there[0].at(n, 1 - j))
        s.signal(told.at(n, 1 - j))
    with s.stream("read"):
        s.wait(told.by(n, 1 - j))
        s.read(there[0])
        s.signal(through.at(n, 1 - j))


def test_a_copy_that_is_told_of_and_awaited_is_ordered() -> None:
    p = program(hand_over)
    assert check(p, 1).is_clean
    # 2 ranks x 4 calls x 6 ops, each one event.
    assert (check(p, 1).num_ops, check(p, 1).num_events) == (48, 48)


@pytest.mark.parametrize("nth", [0, 1], ids=["written again", "read"])
def test_without_one_of_its_waits_it_races(nth: int) -> None:
    p = program(hand_over)
    report = check(p, 1, drop=op(p, OpKind.WAIT, nth))
    assert report.codes == ("V201",)
    assert "there[0] on rank 0." in str(report.problems[0]) and "copy" in str(report.problems[0]) and "read" in str(report.problems[0])


def test_a_path_names_its_ops_in_the_calls_that_were_asked_for() -> None:
    p = program(hand_over)
    copy, read = op(p, OpKind.COPY), op(p, OpKind.READ)
    path = ordered(p, 1, At.of(copy, dict(e=-7, n=0, j=1)), At.of(read, dict(e=-7, n=0, j=0)))
    assert [line.split(" (")[0] for line in path] == [
        "call -7 copy#1 of rank 0.1", "call -7 signal#2 of rank 0.1", "call -7 wait#3 of rank 0.0", "call -7 read#4 of rank 0.0",
    ]
    assert ordered(p, 1, At.of(read, dict(e=3, n=0, j=0)), At.of(copy, dict(e=4, n=0, j=1)))
    assert not ordered(p, 1, At.of(read, dict(e=3, n=0, j=0)), At.of(copy, dict(e=3, n=0, j=1)))
    assert not ordered(p, 1, At.of(copy, dict(e=3, n=0, j=0)), At.of(read, dict(e=3, n=0, j=0))), "a lane does not read what it gave away"
    with pytest.raises(KeyError):
        ordered(p, 1, At.of(copy, dict(e=0, n=1, j=0)), At.of(read, dict(e=0, n=0, j=0)))


def sends(done: bool, then: bool) -> Callable[[Schedule], None]:
    """A put whose source is overwritten and whose target is read, each behind the put's own event or not."""

    def put_and_go_on(s: Schedule) -> None:
        (n, j), M = s.here, s.nodes
        shard = s.input("shard", Block.SHARD, one=1)
        mine, theirs = s.buffer("mine", Block.SHARD, bank=2), s.output("theirs", Block.SHARD, one=1)
        left, came, filled = s.flag("left", SELF), s.flag("came", RAIL, on=dict(c=(1, M))), s.flag("filled")
        to = wrap(n + 1, M)
        with s.stream("net"):
            s.copy(shard[0], mine[0])
            s.put(mine[0], theirs[0].at(to, j), then=came[1].at(to, j), done=left)
            s.signal(filled)
            if done:
                s.wait(left)
            s.copy(shard[0], mine[0])
            if then:
                s.wait(came[1].by(back(n - 1, M), j))
            s.read(theirs[0])

    return put_and_go_on


def test_reuse_waits_for_done_and_reading_for_then() -> None:
    assert check(program(sends(True, True), 1), 2, calls=1).is_clean
    early = check(program(sends(False, True), 1), 2, calls=1)
    assert early.codes == ("V205",) and "mine[0]" in str(early.problems[0])
    unread = check(program(sends(True, False), 1), 2, calls=1)
    assert unread.codes == ("V201",) and "theirs[0]" in str(unread.problems[0])


def test_an_arrival_does_not_say_that_the_source_is_free() -> None:
    p = program(sends(True, True), 1)
    put = op(p, OpKind.PUT)
    at = dict(e=0, n=0, j=0)
    copy_again, read = At.of(op(p, OpKind.COPY, 1), at), At.of(op(p, OpKind.READ), dict(e=0, n=1, j=0))
    assert ordered(p, 2, At.of(put, at, Event.DONE), copy_again) and ordered(p, 2, At.of(put, at, Event.THEN), read)
    assert not ordered(p, 2, At.of(put, at, Event.THEN), copy_again) and not ordered(p, 2, At.of(put, at, Event.DONE), read)


def sets(joined_first: bool) -> Callable[[Schedule], None]:
    def unordered(s: Schedule) -> None:
        (n, j), L = s.here, s.lanes
        shard, land = s.input("shard", Block.SHARD, one=1), s.output("land", Block.SHARD, slot=L)
        with s.stream("copy"):
            for o in s.each_lane("o"):
                s.copy(shard[0], land[o])
            if joined_first:
                s.join()
            s.read(land[ALL])
            if not joined_first:
                s.join()

    return unordered


def test_only_what_follows_the_join_comes_after_an_unordered_set() -> None:
    p = program(sets(True))
    assert check(p, 1, calls=1).is_clean
    assert check(program(sets(False)), 1, calls=1).codes == ("V201",)
    copy = op(p, OpKind.COPY)
    first, second = (At.of(copy, dict(e=0, n=0, j=0, o=o)) for o in (0, 1))
    assert not ordered(p, 1, first, second) and not ordered(p, 1, second, first)


def flags(what: str) -> Callable[[Schedule], None]:
    def flagged(s: Schedule) -> None:
        (n, j), e = s.here, s.call
        ticks = s.flag("ticks", k=2)
        with s.stream("a"):
            if what == "late":
                s.wait(ticks[1])
            for k in s.serial("k", 0, 2):
                s.signal(ticks[1 - k if what == "reversed" else 0 if what == "repeated" else k])
        with s.stream("b"):
            if what == "unkept":
                s.wait(ticks[2])
            elif what != "late":
                s.wait(ticks[1])
            if what == "two streams":
                s.signal(ticks[0])

    return flagged


@pytest.mark.parametrize(("what", "found"), [
    ("plain", ()), ("reversed", (Finding.MISCOUNT,)), ("repeated", (Finding.MISCOUNT,)), ("unkept", (Finding.MISSING,)),
    ("late", (Finding.POSITION, Finding.CYCLE)), ("two streams", (Finding.MISCOUNT, Finding.AMBIGUOUS)),
])
def test_flags_are_counted(what: str, found: tuple[Finding, ...]) -> None:
    report = check(program(flags(what), 1), 1)
    assert {p.finding for p in report.problems} >= set(found), list(map(str, report.problems))
    assert report.is_clean == (what == "plain")


def test_a_cycle_names_its_ops() -> None:
    report = check(program(flags("late"), 1), 1, calls=1)
    (cycle,) = report.of(Finding.CYCLE)
    assert {str(p).split(" of ")[0] for p in cycle.points} == {"call 0 wait#0", "call 0 signal#1"}


def plans(r: random.Random) -> tuple[str, int, int, dict[str, object]]:
    """A shipped schedule, lanes, nodes and knobs, small enough for a graph of at most some ten thousand ops."""
    lanes = r.randint(1, 4)
    if r.random() < 0.3:
        return "tide_ag", lanes, r.randint(1, 9), dict(cast=r.random() < 0.5, multicast=r.random() < 0.5)
    width, k, parts = r.choice([w for w in range(1, lanes + 1) if lanes % w == 0]), r.randint(1, 5), r.randint(1, 3)
    n_out = r.choice(["full", min(k, width), min(k, width) + 1, 2 * k])
    nodes = r.randint(1, 9 if parts == 1 else 5)
    stripes = r.choice((1, 1, 2, 3))
    cut = dict(stripes=stripes, chunks=stripes * r.randint(1, 3)) if nodes * lanes * parts <= 12 else {}
    return "tide_rs", lanes, nodes, dict(W=width, k=k, n_part=parts, n_out=n_out, n_stg=r.randint(1, 4), multicast=r.random() < 0.5, **cut)


@pytest.mark.parametrize("seed", [pytest.param(s, marks=[] if s < 12 else [pytest.mark.slow]) for s in range(150)])
def test_shipped_schedules_are_clean(seed: int, draws) -> None:
    name, lanes, nodes, knobs = plans(draws(seed))
    report = check(traced(name, lanes, **knobs), nodes)
    assert report.is_clean, (name, lanes, nodes, knobs, *map(str, report.problems[:3]))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "lanes", "knobs"), [
    ("tide_ag", 2, dict()), ("tide_ag", 2, dict(cast=True, multicast=True)), ("tide_rs", 2, dict(W=2, k=1)), ("tide_rs", 2, dict(W=2, k=1, n_out=2, n_part=2)),
], ids=["ag", "ag cast", "rs", "rs partial"])
def test_every_dropped_wait_shows(name: str, lanes: int, knobs: dict) -> None:
    p = traced(name, lanes, **knobs)
    unseen = [
        s.op.waits[0].flag for s in statements(p) if s.op.waits and all(check(p, nodes, drop=s.op.id).is_clean for nodes in (1, 2, 3, 4, 5, 7))
    ]
    assert not unseen
