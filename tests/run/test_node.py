"""A rank under a live job on the host target: every call gives the reference's bits, and what cannot go on says why within its deadline."""
from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tidec.build.rt import rt_file
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.interpret.bits import carry_out
from tidec.plan.ir import Plan
from tidec.plan.layout import PACK_ITEM_BYTES
from tidec.plan.lower import lower
from tidec.run.compare import first_difference
from tidec.run.made import make

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
# A parameter of which most ranks have nothing, one that is frozen, and rows that no vector divides.
SHAPES = ((7, 3), (33,), (50, 6), (1,), (4, 5))
FROZEN = 4
LONG_S = 30.0


def plan_of(topo: str, collective: Collective, *knobs: str, stored: Dtype = Dtype.BF16, gathered: Dtype | None = None) -> Plan:
    topology = parse_topology(topo)
    params = tuple(Parameter(f"p{i}", s, stored, requires_grad=i != FROZEN) for i, s in enumerate(SHAPES))
    return lower(Ask(topology, Group("g", 1, params, param_dtype=gathered), Lowering.P2P, parse_knobs(knobs, topology.lanes, nodes=topology.nodes)), collective)


TOPOLOGIES = ("1x2", "1x4", "2x2", "3x1")
CASES = {
    **{f"{t} {c.value}": plan_of(t, c) for t in TOPOLOGIES for c in Collective},
    "2x2 cast": plan_of("2x2", GATHER, "cast=1", stored=Dtype.FP32, gathered=Dtype.BF16),
    "3x1 one block out": plan_of("3x1", REDUCE, "k=1", "n_out=1", "n_part=2"),
    "2x2 chunks": plan_of("2x2", REDUCE, "stripes=2", "chunks=2"),
}


class Ranks:
    """The processes of a job. ask: all ranks do the same, at the same time."""

    def __init__(self, processes: Sequence[subprocess.Popen]):
        self.processes = tuple(processes)

    def tell(self, rank: int, what: str, *arguments: object) -> None:
        self.processes[rank].stdin.write(json.dumps([what, arguments]) + "\n")
        self.processes[rank].stdin.flush()

    def hear(self, rank: int) -> tuple[bool, object]:
        ready, _, _ = select.select([self.processes[rank].stdout], [], [], LONG_S)
        assert ready, f"rank {rank} says nothing"
        line = self.processes[rank].stdout.readline()
        assert line, f"rank {rank} has ended: {self.processes[rank].stderr.read()[-2000:]}"
        return tuple(json.loads(line))

    def one(self, rank: int, what: str, *arguments: object) -> object:
        self.tell(rank, what, *arguments)
        is_fine, answer = self.hear(rank)
        assert is_fine, answer
        return answer

    def refused(self, rank: int, what: str, *arguments: object) -> str:
        self.tell(rank, what, *arguments)
        is_fine, answer = self.hear(rank)
        assert not is_fine, answer
        return answer

    def all(self, what: str, arguments=lambda rank: ()) -> list:
        for r in range(len(self.processes)):
            self.tell(r, what, *arguments(r))
        answers = [self.hear(r) for r in range(len(self.processes))]
        assert all(is_fine for is_fine, _ in answers), answers
        return [answer for _, answer in answers]


@contextmanager
def opened(plan: Plan, library: Path, rt: Path, *, deadline_ms: int = 20_000, is_connected: bool = True) -> Iterator[Ranks]:
    """A process a rank, connected."""
    program = _programs(plan)
    processes = []
    try:
        for r in range(plan.ranks):
            command = (sys.executable, "-I", "-S", str(Path(__file__).with_name("node_rank.py")), str(rt_file(rt)), str(library), str(program), str(r), str(deadline_ms))
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        ranks = Ranks(processes)
        if is_connected:
            handles = ranks.all("handle")
            ranks.all("connect", lambda r: (handles,))
        yield ranks
    finally:
        for p in processes:
            p.kill()
        for p in processes:
            p.communicate()


def _programs(plan: Plan) -> int:
    return [p.digest for p in CASES.values()].index(plan.digest)


@pytest.fixture(scope="module")
def library(hosted) -> Path:
    return hosted(list(CASES.values()))


def carried_out(ranks: Ranks, plan: Plan, given, *, alpha: float = 1.0, accumulate: bool = False, is_early: bool = False) -> tuple:
    """What the calls of a job give, call by call and rank by rank. is_early: a call is gathered before the one before is released."""
    outputs = []
    for e in range(given.calls):
        if plan.collective is GATHER:
            if e == 0 or not is_early:
                ranks.all("gather", lambda r: (e, given.inputs[e][r][0].tobytes().hex()))
            got = ranks.all("acquire", lambda r: (e, plan.layout.landing_bytes))
            if is_early and e + 1 < given.calls:
                ranks.all("gather", lambda r: (e + 1, given.inputs[e + 1][r][0].tobytes().hex()))
                assert ranks.all("look", lambda r: (e, plan.layout.landing_bytes)) == got
            ranks.all("release", lambda r: (e,))
        else:
            got = ranks.all("reduce", lambda r: (
                e, [g.tobytes().hex() if g.size else None for g in given.inputs[e][r]], given.before[e][r].tobytes().hex(), alpha, accumulate))
        outputs.append(tuple(np.frombuffer(bytes.fromhex(x), np.uint8) for x in got))
    return tuple(outputs)


@pytest.mark.parametrize("name", [n if n.startswith(("2x2", "3x1 one")) else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_every_call_gives_the_references_bits(name, library, rt_kept):
    plan = CASES[name]
    alpha = 1 / plan.ranks
    for variant in (False, True):
        accumulate = variant and plan.collective is REDUCE
        given = make(plan, calls=4, accumulate=accumulate)
        with opened(plan, library, rt_kept) as ranks:
            got = carried_out(ranks, plan, given, alpha=alpha, accumulate=accumulate, is_early=variant)
            assert ranks.all("close") == [[0, 0]] * plan.ranks
        assert first_difference(plan, got, carry_out(plan, given, alpha=alpha, accumulate=accumulate)) is None
