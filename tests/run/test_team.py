"""A team is closed whatever happens: once all have met, or at once where its collectives stopped, which the others are told."""
from __future__ import annotations

from types import SimpleNamespace

import pytest

from tidec.errors import Diagnostic, TidecError
from tidec.run.device import CPU
from tidec.run.team import Team


class Told:
    """A board, as a team sees it. It and its node tell what is done to them, in order."""

    def __init__(self, problem: BaseException | None = None):
        self.said: list[str] = []
        self.problem = problem

    def write(self, line: str) -> None:
        self.said.append(f"writes {line}")

    def meet(self, place: str, deadline_s: float) -> None:
        self.said.append(f"meets at {place} in {deadline_s:g} s")
        if self.problem is not None:
            raise self.problem

    def close(self) -> None:
        self.said.append("closes the board")

    def where(self) -> tuple[str, ...]:
        return ("rank 0: a step",)


class Node:
    def __init__(self, board: Told, problem: str = ""):
        self.board, self.problem = board, problem

    def wait(self, deadline_ms: int) -> None:
        self.board.said.append(f"waits {deadline_ms} ms")
        if self.problem:
            raise RuntimeError(self.problem)

    def close(self) -> None:
        self.board.said.append("closes a node")


def team_of(board: Told, *, is_broken: bool = False, device: object = CPU, problem: str = "") -> Team:
    watch = SimpleNamespace(close=lambda: board.said.append("watches no more"), stop=lambda: board.said.append("looks no more"))
    return Team(SimpleNamespace(), 6000, False, device, board, watch if device is not CPU else None, nodes=[Node(board, problem)], held=[SimpleNamespace(is_broken=is_broken)])


@pytest.fixture
def gpu() -> SimpleNamespace:
    return SimpleNamespace(is_behind=True, synchronize=lambda: None)


def test_it_is_closed_once_all_have_met():
    board = Told()
    team = team_of(board)
    team.leave()
    assert board.said == ["meets at tidec.uninstall in 6 s", "closes a node", "closes the board"]
    team.leave()
    assert len(board.said) == 3


def test_one_whose_collectives_stopped_meets_nobody_and_says_so():
    board = Told()
    team_of(board, is_broken=True).leave()
    assert board.said == ["writes tidec.uninstall, after a collective that stopped", "closes a node", "closes the board"]


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), TidecError(Diagnostic("R001", "rank 1 does not come", reason="", help="x"))])
def test_it_is_closed_where_others_do_not_come(problem):
    board = Told(problem)
    with pytest.raises(type(problem)):
        team_of(board).leave()
    assert board.said[1:] == ["closes a node", "closes the board"]


def test_on_a_gpu_what_was_begun_is_over_before_it_meets(gpu):
    board = Told()
    team_of(board, device=gpu).leave()
    assert board.said == ["waits 6000 ms", "watches no more", "meets at tidec.uninstall in 6 s", "watches no more", "closes a node", "closes the board"]


def test_on_a_gpu_nodes_stay_where_others_may_still_write(gpu):
    for board, problem in ((Told(KeyboardInterrupt()), ""), (Told(), "waited 6 s")):
        with pytest.raises((KeyboardInterrupt, TidecError), match="R001.*what was begun before tidec.uninstall does not end\n.*waited 6 s; rank 0: a step" if problem else None):
            team_of(board, device=gpu, problem=problem).leave()
        assert "closes a node" not in board.said and board.said[-1] == "closes the board"
    board = Told()
    team_of(board, is_broken=True, device=gpu).leave()
    assert board.said == ["writes tidec.uninstall, after a collective that stopped", "looks no more", "watches no more", "closes the board"]
