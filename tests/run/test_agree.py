"""What ranks bring is compared, and the first that differs is named; lines of a board are read whole or not at all."""
from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from tidec.errors import TidecError
from tidec.run import agree
from tidec.run.agree import Board, Peers


class Meeting:
    """Ranks that are threads of this process. They exchange what they give, by the name of the group."""

    def __init__(self, groups: dict[str, Sequence[int]]):
        self.groups = groups
        self._barriers = {name: threading.Barrier(len(ranks), timeout=20) for name, ranks in groups.items()}
        self._given: dict[str, dict[int, object]] = {name: {} for name in groups}

    def exchange(self, group: Group, mine: object) -> list:
        given, barrier = self._given[group.name], self._barriers[group.name]
        given[group.me] = mine
        barrier.wait()
        found = [given[r] for r in self.groups[group.name]]
        barrier.wait()
        return found

    def run(self, do: Callable[[int], object], ranks: int) -> list:
        """What `do` gives or raises, on every rank."""
        found: list = [None] * ranks

        def rank(r: int) -> None:
            try:
                found[r] = do(r)
            except TidecError as problem:
                found[r] = str(problem)

        threads = [threading.Thread(target=rank, args=(r,)) for r in range(ranks)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(timeout=30)
        return found


class Group:
    """A process group as `Peers` sees it. me: the rank's number in the job."""

    def __init__(self, meeting: Meeting, name: str, me: int):
        self.meeting, self.name, self.me = meeting, name, me

    def rank(self) -> int:
        return list(self.meeting.groups[self.name]).index(self.me)

    def size(self) -> int:
        return len(self.meeting.groups[self.name])


@pytest.fixture(autouse=True)
def exchanged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def all_gather_object(found: list, mine: object, group: Group) -> None:
        found[:] = group.meeting.exchange(group, mine)

    def broadcast_object_list(found: list, group_src: int, group: Group) -> None:
        found[0] = group.meeting.exchange(group, found[0])[group_src]

    monkeypatch.setattr(agree.dist, "all_gather_object", all_gather_object)
    monkeypatch.setattr(agree.dist, "broadcast_object_list", broadcast_object_list)
    monkeypatch.setattr(agree.dist, "get_process_group_ranks", lambda group: list(group.meeting.groups[group.name]))
    yield


# Two replicas of two ranks: ranks 0 1 and 2 3 shard; 0 2 and 1 3 add up.
HYBRID = {"first": (0, 1), "second": (2, 3), "left": (0, 2), "right": (1, 3)}


def peers_of(meeting: Meeting, r: int) -> Peers:
    return Peers(Group(meeting, "first" if r < 2 else "second", r), [Group(meeting, "left" if r % 2 == 0 else "right", r)])


@pytest.mark.parametrize(("values", "said"), [
    ("aaaa", ""), ("abaa", "rank 0 has a, rank 1 has b"), ("aaab", "rank 2 has a, rank 3 has b"), ("aabb", "rank 0 has a, rank 2 has b"), ("abac", "rank 0 has a, rank 1 has b"),
])
def test_one_rank_that_differs_is_told_by_all_of_all_replicas(values, said):
    meeting = Meeting(HYBRID)
    found = meeting.run(lambda r: peers_of(meeting, r).check_same("the plans", values[r]), 4)
    if not said:
        assert found == [None] * 4
        return
    assert all("F010" in text and "ranks disagree about the plans" in text for text in found)
    assert all(said in text for text in found), found


def test_the_line_that_differs_is_told():
    meeting = Meeting({"all": (0, 1)})
    texts = ("one\ntwo\nthree", "one\n2\nthree\nfour")
    found = meeting.run(lambda r: Peers(Group(meeting, "all", r)).check_same("the groups", texts[r]), 2)
    assert all("rank 0 has two, rank 1 has 2" in text for text in found)
    found = meeting.run(lambda r: Peers(Group(meeting, "all", r)).check_same("the groups", "one\ntwo"[: 3 + 4 * r]), 2)
    assert all("rank 0 has no more, rank 1 has two" in text for text in found)


def test_trouble_of_one_replica_is_that_of_all():
    meeting = Meeting(HYBRID)
    assert meeting.run(lambda r: peers_of(meeting, r).of_replicas("trouble" if r >= 2 else None), 4) == ["trouble"] * 4
    assert meeting.run(lambda r: peers_of(meeting, r).of_replicas(None), 4) == [None] * 4


def test_the_first_rank_with_trouble_is_named_by_its_number_in_the_job():
    meeting = Meeting(HYBRID)
    assert meeting.run(lambda r: peers_of(meeting, r).first_trouble("no compiler" if r == 3 else ""), 4) == [None, None, (3, "no compiler"), (3, "no compiler")]


@pytest.fixture
def boards() -> Iterator[list[Board]]:
    """The boards of ranks 4 and 6 of a job."""
    meeting = Meeting({"pair": (4, 6)})
    found = meeting.run(lambda r: Board(Peers(Group(meeting, "pair", (4, 6)[r]))), 2)
    yield found
    for board in found:
        board.close()


def test_lines_that_differ_stop_both(boards):
    for board in boards:
        assert board.write("the same") == 0
        board.check(0)
    numbers = [board.write(line) for board, line in zip(boards, ("left", "right"))]
    for board, one, other in ((boards[0], "rank 4: left", "rank 6: right"), (boards[1], "rank 6: right", "rank 4: left")):
        with pytest.raises(TidecError, match=f"F012.*in collective 1\n.*{one}; {other}"):
            board.check(numbers[0])
        assert board.where() == ("rank 4: left", "rank 6: right")


def test_a_line_that_is_not_written_or_long_gone_says_nothing(boards):
    number = boards[0].write("mine")
    boards[0].check(number)
    assert boards[0].where() == ("rank 4: mine", "rank 6: nothing yet")
    for i in range(20):
        boards[1].write(f"far ahead {i}")
    boards[0].check(number)
    assert boards[0].where()[1] == "rank 6: far ahead 19"


def test_a_line_that_is_being_written_over_is_not_read(boards):
    """After every store of a rank that is eight lines ahead, the one behind looks at the line that stood there."""
    behind, ahead = boards
    number = behind.write("the first of a long line")
    ahead.write("the first of a long line")
    for i in range(1, 8):
        ahead.write(f"line {i}")
    memory, looks = ahead._memory, []

    class Watched:
        def __setitem__(self, where, value):
            memory[where] = value
            behind.check(number)
            looks.append(where)

    ahead._memory = Watched()
    ahead.write("something else altogether")
    ahead._memory = memory
    assert len(looks) >= 3


def test_a_line_too_long_or_not_ascii_is_cut_not_refused(boards):
    for board in boards:
        board.check(board.write("x" * 5000 + "\u00e9"))
        board.check(board.write("caf\u00e9"))
    assert boards[0].where() == ("rank 4: caf?", "rank 6: caf?")


def test_ranks_meet_once_all_have_come():
    meeting = Meeting({"all": (0, 1, 2)})

    def rank(r: int) -> tuple[str, ...]:
        board = Board(Peers(Group(meeting, "all", r)))
        for i in range(20):
            board.meet(f"place {i}", 20.0)
        meeting.exchange(Group(meeting, "all", r), None)
        said = board.where()
        board.close()
        return said

    assert meeting.run(rank, 3) == [("rank 0: place 19", "rank 1: place 19", "rank 2: place 19")] * 3


@pytest.fixture
def three() -> Iterator[list[Board]]:
    meeting = Meeting({"three": (4, 6, 7)})
    found = meeting.run(lambda r: Board(Peers(Group(meeting, "three", (4, 6, 7)[r]))), 3)
    yield found
    for board in found:
        board.close()


def test_a_rank_that_comes_to_no_meeting_is_named_at_the_deadline_with_what_all_said(three):
    for board in three:
        board.check(board.write("a step"))
    three[1].write("the end")
    with pytest.raises(TidecError, match="R001.*rank 7 does not come to the end in 0.05 s\n.*rank 4: the end; rank 6: the end; rank 7: a step"):
        three[0].meet("the end", 0.05)


def test_whoever_does_something_else_is_named_though_another_is_silent(three):
    three[1].write("a step")
    with pytest.raises(TidecError, match="F012.*\n.*rank 4: the end; rank 6: a step"):
        three[0].meet("the end", 60.0)


def test_a_meeting_does_not_wait_for_a_process_that_has_ended(three):
    """As long as nobody has asked for its exit code, something of it is left."""
    ended = subprocess.Popen(["true"])
    began = agree._began(ended.pid)
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    three[0]._processes[1:] = [(ended.pid, began or "7"), (ended.pid, began or "7")]
    three[2].write("the end")
    try:
        with pytest.raises(TidecError, match="R001.*rank 6 does not come to the end\n.*the process of rank 6 has ended; rank 4: the end"):
            three[0].meet("the end", 60.0)
    finally:
        ended.wait()
    assert agree._began(os.getpid()).isdecimal()


def test_a_board_leaves_no_file_open():
    before = len(os.listdir("/proc/self/fd"))
    meeting = Meeting({"pair": (0, 1)})
    for _ in range(5):
        for board in meeting.run(lambda r: Board(Peers(Group(meeting, "pair", r))), 2):
            board.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_that_cannot_be_shared_is_refused_by_all(monkeypatch):
    meeting = Meeting({"pair": (0, 1)})
    opened = os.open

    def refusing(path, *args):
        if threading.current_thread() is not threading.main_thread() and re.match(r"/proc/\d+/fd/", path) and refused.acquire(blocking=False):
            raise PermissionError(1, "Operation not permitted")
        return opened(path, *args)

    refused = threading.Semaphore(1)
    monkeypatch.setattr(agree.os, "open", refusing)
    found = meeting.run(lambda r: Board(Peers(Group(meeting, "pair", r))), 2)
    assert all("F011" in text and "cannot open the memory of rank 0" in text for text in found)
