"""What does not end, and ranks that do different things, end the process with the reason; what is over is forgotten."""
from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from tidec.errors import Diagnostic, TidecError
from tidec.run.watch import Watch


class Mark:
    def __init__(self, is_over: bool = False):
        self.is_over = is_over

    def query(self) -> bool:
        return self.is_over


def board(checked=lambda first: first) -> SimpleNamespace:
    return SimpleNamespace(check_from=checked, where=lambda: ("rank 0: the all-gather of a", "rank 1: nothing yet"))


def watched(deadline_s: float, told: list, of: SimpleNamespace, period_s: float = 3600.0) -> Watch:
    return Watch(of, deadline_s, end=told.append, period_s=period_s)


def test_a_call_that_is_not_over_at_its_deadline_is_told_with_what_ranks_last_said():
    watch = watched(0.0, [], board())
    watch.add(Mark(), "all-gather 7 of plan abc")
    with pytest.raises(TidecError, match="R001.*all-gather 7 of plan abc is not over after 0 s\n.*rank 1: nothing yet"):
        watch.look()
    watch.close()


def test_what_is_over_is_forgotten_and_what_is_in_time_waits():
    late, soon = watched(0.0, [], board()), watched(3600.0, [], board())
    first, second = Mark(True), Mark(True)
    late.add(first, "a")
    late.add(second, "b")
    late.look()
    assert not late._open
    soon.add(Mark(), "c")
    soon.look()
    assert len(soon._open) == 1
    for watch in (late, soon):
        watch.close()


def test_ranks_that_do_different_things_are_told_by_the_thread_itself():
    """The main thread may wait in the driver for what never comes."""
    ended = threading.Event()
    told: list[TidecError] = []

    def differing(first: int) -> int:
        raise TidecError(Diagnostic("F012", "ranks do different things in collective 3", reason="", help="x"))

    watch = Watch(board(differing), 3600.0, end=lambda problem: (told.append(problem), ended.set()), period_s=0.001)
    assert ended.wait(20)
    watch.close()
    assert [d.code for d in told[0].diagnostics] == ["F012"] and len(told) == 1


def test_lines_are_checked_once_each():
    looked = []
    watch = watched(3600.0, [], board(lambda first: looked.append(first) or first + 2))
    for _ in range(3):
        watch.look()
    watch.close()
    assert looked == [0, 2, 4]
