"""Several collectives on one set of ranks: their calls stand in one order, the same on every rank, and each call is issued whole.

M nodes, e call. Every program keeps its own buffers, counters and streams; what they share is the order in which the host issues, and so whatever
serialises ops in that order: a hardware queue that streams are aliased on, or the communicator of a rail.
"""
from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from tidec.interpret.machine import Policy, SimulationReport, play
from tidec.interpret.unfold import Point, Unfolding, unfold
from tidec.schedule.branch import branch
from tidec.schedule.program import Program
from tidec.schedule.step import prefixed


def simulate_together(programs: tuple[Program, ...], nodes: int, calls: int, turns: Iterable[int], *, seed: int = 0, policy: Policy = Policy.ONE_QUEUE) -> SimulationReport:
    """Runs calls of several programs and checks the contract of the first `calls` of each on every rank.

    turns: whose call comes next, by its place in `programs`; each of them calls + 1 times, since what a call gathers may be read in the next.
    """
    order = tuple(turns)
    assert all(order.count(i) == calls + 1 for i in range(len(programs))), (order, calls)
    named = tuple(prefixed(branch(p, nodes), f"x{i}_", 1000 * i) for i, p in enumerate(programs))
    parts = tuple(unfold(p, nodes, calls + 1) for p in named)
    both = replace(
        named[0], buffers=sum((p.buffers for p in named), ()), flags=sum((p.flags for p in named), ()), streams=sum((p.streams for p in named), ()), body=(), covers=())
    points = tuple(_merged(tuple(part.points[r] for part in parts), order) for r in range(len(parts[0].ranks)))
    merged = Unfolding(both, nodes, calls + 1, parts[0].ranks, points, sum((part.outside for part in parts), ()))
    assert not merged.outside, merged.outside[0]
    return play(merged, calls, random.Random(seed), policy)


def _merged(of_programs: tuple[tuple[Point, ...], ...], order: tuple[int, ...]) -> tuple[Point, ...]:
    """The points of one rank, call by call in the common order; what a point follows keeps its number in the new list."""
    places: tuple[list[int], ...] = tuple([0] * len(points) for points in of_programs)
    nexts = [0] * len(of_programs)
    taken: list[Point] = []
    for turn, i in enumerate(order):
        points = of_programs[i]
        call = sum(x == i for x in order[:turn])
        while nexts[i] < len(points) and points[nexts[i]].call == call:
            point = points[nexts[i]]
            places[i][nexts[i]] = len(taken)
            taken.append(replace(point, position=(turn, *point.position[1:]), after=tuple(places[i][k] for k in point.after)))
            nexts[i] += 1
    return tuple(taken)


def simulate_step(step: Program, nodes: int, calls: int = 3, *, seed: int = 0, policy: Policy = Policy.ONE_QUEUE) -> SimulationReport:
    """Runs `calls` calls of a step that was traced to be played, and checks the contract of both of its collectives. What call e gathers is read in call e + 1."""
    unfolding = unfold(branch(step, nodes), nodes, calls + 1)
    assert not unfolding.outside, unfolding.outside[0]
    return play(unfolding, calls, random.Random(seed), policy)
