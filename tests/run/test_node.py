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
from tidec.run.count import counted, planned
from tidec.run.library import load_rt
from tidec.run.made import make

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
# A parameter of which most ranks have nothing, one that is frozen, and rows that no vector divides.
SHAPES = ((7, 3), (33,), (50, 6), (1,), (4, 5))
FROZEN = 4
LONG_S = 30.0


def plan_of(topo: str, collective: Collective, *knobs: str, shapes=SHAPES, stored: Dtype = Dtype.BF16, gathered: Dtype | None = None, landings: int = 2) -> Plan:
    topology = parse_topology(topo)
    params = tuple(Parameter(f"p{i}", s, stored, requires_grad=i != FROZEN) for i, s in enumerate(shapes))
    return lower(Ask(topology, Group("g", 1, params, param_dtype=gathered, landings=landings), Lowering.P2P, parse_knobs(knobs, topology.lanes, nodes=topology.nodes)), collective)


TOPOLOGIES = ("1x2", "1x4", "2x2", "3x1")
CASES = {
    **{f"{t} {c.value}": plan_of(t, c) for t in TOPOLOGIES for c in Collective},
    "2x2 cast": plan_of("2x2", GATHER, "cast=1", stored=Dtype.FP32, gathered=Dtype.BF16),
    "2x2 one landing": plan_of("2x2", GATHER, landings=1),
    "3x1 one block out": plan_of("3x1", REDUCE, "k=1", "n_out=1", "n_part=2"),
    "2x2 chunks": plan_of("2x2", REDUCE, "stripes=2", "chunks=2"),
    **{f"by hand {c.value}": plan_of("1x2", c, shapes=((2,),), stored=Dtype.FP32) for c in Collective},
}
DEFAULT = ("2x2 all_gather", "2x2 reduce_scatter", "2x2 cast", "2x2 one landing", "3x1 one block out")


class Ranks:
    """The processes of a job. ask: all ranks do the same, at the same time."""

    def __init__(self, processes: Sequence[subprocess.Popen]):
        self.processes = tuple(processes)

    def tell(self, rank: int, what: str, *arguments: object, **named: object) -> None:
        self.processes[rank].stdin.write(json.dumps([what, arguments, named]) + "\n")
        self.processes[rank].stdin.flush()

    def hear(self, rank: int) -> tuple[bool, object]:
        ready, _, _ = select.select([self.processes[rank].stdout], [], [], LONG_S)
        assert ready, f"rank {rank} says nothing"
        line = self.processes[rank].stdout.readline()
        assert line, f"rank {rank} has ended: {self.processes[rank].stderr.read()[-2000:]}"
        return tuple(json.loads(line))

    def one(self, rank: int, what: str, *arguments: object, **named: object) -> object:
        self.tell(rank, what, *arguments, **named)
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


# ---- what calls give

# Of four calls: each on its own; the next gathered before one is released; two landings held at once.
ORDERS = {
    "one by one": "g0 a0 r0 g1 a1 r1 g2 a2 r2 g3 a3 r3",
    "early": "g0 a0 g1 r0 a1 g2 r1 a2 g3 r2 a3 r3",
    "held": "g0 g1 a0 a1 r0 g2 r1 g3 a2 a3 r2 r3",
}


def gathered(ranks: Ranks, plan: Plan, given, order: str) -> tuple:
    """What every call of an all-gather lands, rank by rank; it is there until it is released."""
    landings = {}
    for what, e in ((step[0], int(step[1:])) for step in order.split()):
        if what == "g":
            ranks.all("gather", lambda r: (e, given.inputs[e][r][0].tobytes().hex()))
        elif what == "a":
            landings[e] = ranks.all("acquire", lambda r: (e, plan.layout.landing_bytes))
        else:
            assert ranks.all("look", lambda r: (e, plan.layout.landing_bytes)) == landings[e]
            ranks.all("release", lambda r: (e,))
    return tuple(tuple(_memory(x) for x in landings[e]) for e in sorted(landings))


def reduced(ranks: Ranks, given, alpha: float, accumulate: bool) -> tuple:
    return tuple(
        tuple(_memory(x) for x in ranks.all("reduce", lambda r: (
            e, [g.tobytes().hex() if g.size else None for g in given.inputs[e][r]], given.before[e][r].tobytes().hex(), alpha, accumulate)))
        for e in range(given.calls))


def _memory(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), np.uint8)


def fp32(*numbers: float) -> str:
    return np.array(numbers, np.float32).tobytes().hex()


def test_two_ranks_gather_and_sum_what_one_can_check_by_hand(library, rt_kept):
    with opened(CASES["by hand all_gather"], library, rt_kept) as ranks:
        for e in range(3):
            ranks.all("gather", lambda r: (e, fp32(10 * r + e)))
            assert ranks.all("acquire", lambda r: (e, 8)) == [fp32(e, 10 + e)] * 2
            ranks.all("release", lambda r: (e,))
        # Waits: for the call before, for room on 2 lanes, for scattered, and to read for 2 lanes. Signals: room and done for 2 lanes, scattered, released.
        assert ranks.all("counts", lambda r: (2,)) == [[6, 6, 2, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0]] * 2
        for e in (3, -1):
            assert f"counts({e}) is not of the last 8 calls that are over: they end before 3" in ranks.refused(0, "counts", e)
    with opened(CASES["by hand reduce_scatter"], library, rt_kept) as ranks:
        assert ranks.all("reduce", lambda r: (0, [fp32(1, 2) if r == 0 else fp32(10, 20)], fp32(7), 0.5, False)) == [fp32(5.5), fp32(11)]
        assert ranks.all("reduce", lambda r: (1, [fp32(1, 2) if r == 0 else fp32(10, 20)], fp32(7), 2.0, True)) == [fp32(29), fp32(51)]
        # A value is pushed to the other lane, which tells that it is there, and that its stage is free again; two values are summed.
        assert ranks.all("counts", lambda r: (1,)) == [[3, 3, 1, 0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 8, 0]] * 2
        assert ranks.all("close") == [[0, 0]] * 2


@pytest.mark.parametrize("name", [n if n in DEFAULT else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_every_call_gives_the_references_bits(name, library, rt_kept):
    plan = CASES[name]
    alpha, before = 1 / plan.ranks, set(os.listdir("/dev/shm"))
    orders = ORDERS.values() if plan.landings == 2 else (ORDERS["one by one"],)
    for variant in orders if plan.collective is GATHER else (False, True):
        accumulate = variant is True
        given = make(plan, calls=4, accumulate=accumulate, is_poisoned=True)
        with opened(plan, library, rt_kept) as ranks:
            got = gathered(ranks, plan, given, variant) if plan.collective is GATHER else reduced(ranks, given, alpha, accumulate)
            for e in range(4):
                assert [counted(x) for x in ranks.all("counts", lambda r: (e,))] == [planned(plan, r, e) for r in range(plan.ranks)], f"call {e}"
            assert set(os.listdir("/dev/shm")) == before and ranks.all("close") == [[0, 0]] * plan.ranks
        assert first_difference(plan, got, carry_out(plan, given, alpha=alpha, accumulate=accumulate)) is None


def test_thousands_of_calls_take_no_more_memory_and_files(library, rt_kept):
    for plan in (CASES["1x2 all_gather"], CASES["1x2 reduce_scatter"]):
        given = make(plan, calls=1)
        what, rest = ("many_gathers", ()) if plan.collective is GATHER else ("many_reduces", (PACK_ITEM_BYTES * plan.layout.packed_elems,))
        inputs = [given.inputs[0][r][0].tobytes().hex() if plan.collective is GATHER else [g.tobytes().hex() if g.size else None for g in given.inputs[0][r]] for r in range(2)]
        with opened(plan, library, rt_kept) as ranks:
            first = ranks.all(what, lambda r: (0, 300, inputs[r], *rest))
            last = ranks.all(what, lambda r: (300, 3000, inputs[r], *rest))
            for (_, kib, files), (us, kib_then, files_then) in zip(first, last):
                assert kib_then - kib < 128 and files == files_then == 0 and us < 1000, (first, last)
            assert ranks.all("close") == [[0, 0]] * 2


def test_wait_ends_when_all_that_was_gathered_is_there(library, rt_kept):
    plan = CASES["1x2 all_gather"]
    given = make(plan, calls=1)
    with opened(plan, library, rt_kept) as ranks:
        ranks.all("gather", lambda r: (0, given.inputs[0][r][0].tobytes().hex()))
        ranks.all("wait", lambda r: (20_000,))
        ranks.one(1, "close")
        landing = _memory(ranks.one(0, "acquire", 0, plan.layout.landing_bytes))
        assert first_difference(plan, ((landing,),), (carry_out(plan, given)[0][:1],)) is None


# ---- what is refused


def test_a_call_out_of_order_is_refused_and_changes_nothing(library, rt_kept):
    plan = CASES["1x2 all_gather"]
    given = make(plan, calls=4)
    shard = given.inputs[0][0][0].tobytes().hex()
    with opened(plan, library, rt_kept) as ranks:
        for asked, said in (
            (("gather", 1, shard), "gather(1) is out of turn: the next is gather(0)"), (("gather", -1, shard), "gather(-1) is out of turn"),
            (("acquire", 0, 1), "acquire(0) comes before gather(0)"), (("acquire", 1, 1), "acquire(1) is out of turn"),
            (("release", 0), "release(0) comes before acquire(0)"), (("gather_at", 0, 0, 0), "gather(0) has no shard"),
            (("gather_at", 0, 64, 8), "the host target has no streams"), (("reduce_at", 0, [0] * len(SHAPES), 64), "the plan is an all-gather, and sums nothing"),
            (("connect", [ranks.one(0, "handle")] * 2), "rank 0.0 is connected already"), (("wait", 0), "the deadline is not positive"),
        ):
            assert said in ranks.refused(0, *asked)
        assert "is of the process that this one was forked from" in ranks.one(0, "forked", 0, shard)
        ranks.all("gather", lambda r: (0, given.inputs[0][r][0].tobytes().hex()))
        ranks.all("gather", lambda r: (1, given.inputs[1][r][0].tobytes().hex()))
        assert "gather(2) comes before release(0), whose landing it would overwrite" in ranks.refused(0, "gather", 2, shard)
        assert "release(1) is out of turn: the next is release(0)" in ranks.refused(0, "release", 1)
        got = gathered(ranks, plan, given, "a0 r0 g2 a1 r1 a2 g3 r2 a3 r3")
        assert first_difference(plan, got, carry_out(plan, given)) is None
        ranks.one(0, "close")
        assert ranks.refused(0, "release", 4) == "the node is closed"
    with opened(CASES["2x2 one landing"], library, rt_kept) as ranks:
        ranks.all("gather", lambda r: (0, shard))
        assert "gather(1) comes before release(0), whose landing it would overwrite" in ranks.refused(0, "gather", 1, shard)


def test_a_reduce_without_what_the_plan_sums_is_refused(library, rt_kept):
    plan = CASES["1x2 reduce_scatter"]
    given = make(plan, calls=1)
    some = [64] * len(SHAPES)
    with opened(plan, library, rt_kept) as ranks:
        for asked, said in (
            ((0, [*some[:2], 0, *some[3:]], 64), "reduce(0) has no gradient of parameter 2, and the plan sums it"),
            ((0, some[1:], 64), f"reduce(0) has {len(SHAPES) - 1} gradients, and the group {len(SHAPES)} parameters"), ((1, some, 64), "reduce(1) is out of turn"),
            ((0, some, 0), "reduce(0) has an output that is not there"), ((0, some, 65), "reduce(0) has an output that is not aligned to 4 bytes"),
        ):
            assert said in ranks.refused(0, "reduce_at", *asked)
        assert "has no landing" in ranks.refused(0, "acquire", 0, 1) and "gathers nothing" in ranks.refused(0, "gather_at", 0, 64, 0)
        assert first_difference(plan, reduced(ranks, given, 1.0, False), carry_out(plan, given)) is None


def test_a_handle_of_another_rank_plan_or_life_is_refused(library, rt_kept):
    with opened(CASES["1x2 all_gather"], library, rt_kept, is_connected=False) as ranks, opened(CASES["1x2 reduce_scatter"], library, rt_kept, is_connected=False) as others:
        handles, (_, other) = ranks.all("handle"), others.all("handle")
        assert "rank 0.0 is not connected" in ranks.refused(0, "gather", 0, "00" * 400)
        assert "in the place of rank 0.1 is the handle of rank number 0" in ranks.refused(0, "connect", handles[:1] * 2)
        assert "rank 0.1 has another plan" in ranks.refused(0, "connect", [handles[0], other])
        assert "the handle of rank 0.1 is none of this target" in ranks.refused(0, "connect", [handles[0], "00" * (len(handles[0]) // 2)])
        # Of 8 bytes each: magic, program, rank, process, file, size and token.
        standard_input = handles[1][:64] + (0).to_bytes(8, "little").hex() + handles[1][80:]
        assert "that file is another one" in ranks.refused(0, "connect", [handles[0], standard_input])
        token = bytes(b ^ 1 for b in bytes.fromhex(handles[1])[48:56])
        assert "is not there any more: that file is another one" in ranks.refused(0, "connect", [handles[0], handles[1][:96] + token.hex() + handles[1][112:]])
        ranks.one(1, "close")
        said = ranks.refused(0, "connect", handles)
        assert f"the memory of rank 0.1 (process {ranks.processes[1].pid}, file " in said and "cannot be reached: No such file or directory (errno 2)" in said


def test_what_cannot_be_opened_says_why(library, rt_kept):
    rt = load_rt(rt_kept)
    opened_library = rt.Library(str(library))
    for arguments, said in (((0, 2, 0, 1000), "there is no rank 2: the plan has 2"), ((0, -1, 0, 1000), "there is no rank -1"), ((0, 0, 0, 0), "the deadline is not positive")):
        with pytest.raises(RuntimeError, match=said):
            rt.Node(opened_library, *arguments)
    node = rt.Node(opened_library, 0, 0, 0, 1000)
    with pytest.raises(ValueError, match="the handles of all 2 ranks"):
        node.connect([node.handle()])
    with pytest.raises(ValueError, match="a handle has 256 bytes"):
        node.connect([node.handle(), b"short"])


# ---- what stops

DEADLINE_MS = 1000


def stopped(ranks: Ranks, alive: Sequence[int], what: str, arguments) -> dict[int, str]:
    """What these ranks say of a call in which all of them stop, and that they say it again at once."""
    for r in alive:
        ranks.tell(r, what, *arguments(r))
    said = {}
    for r in alive:
        is_fine, said[r] = ranks.hear(r)
        assert not is_fine, said
    for r in alive:
        start = time.monotonic()
        assert ranks.refused(r, what, *arguments(r)) == said[r]
        assert time.monotonic() - start < DEADLINE_MS / 2000
    return said


@pytest.mark.parametrize("how", ["SIGSTOP", "SIGKILL", "closed"])
@pytest.mark.parametrize("name", ["2x2 all_gather", pytest.param("2x2 reduce_scatter", marks=pytest.mark.slow)])
def test_a_rank_that_is_gone_stops_all_others_which_name_it(name, how, library, rt_kept):
    plan = CASES[name]
    given = make(plan, calls=2)
    before = set(os.listdir("/dev/shm"))
    with opened(plan, library, rt_kept, deadline_ms=DEADLINE_MS if how == "SIGSTOP" else 20_000) as ranks:
        alive = [0, 1, 3]
        if plan.collective is GATHER:
            gathered(ranks, plan, given, "g0 a0 r0")
            for r in alive:
                ranks.one(r, "gather", 1, given.inputs[1][r][0].tobytes().hex())
            what, arguments = "acquire", lambda r: (1, 1, False)
        else:
            what, arguments = "reduce", lambda r: (0, [g.tobytes().hex() if g.size else None for g in given.inputs[0][r]], given.before[0][r].tobytes().hex(), 1.0, False)
        if how == "closed":
            ranks.one(2, "close")
        else:
            os.kill(ranks.processes[2].pid, getattr(signal, how))
        start = time.monotonic()
        said = stopped(ranks, alive, what, arguments)
        assert time.monotonic() - start < 8
        gone = {"closed": "rank 1.0 is closed", "SIGKILL": f"the process of rank 1.0 ({ranks.processes[2].pid}) has ended", "SIGSTOP": "silent: rank 1.0 for"}[how]
        firsts = [text for text in said.values() if " stops because " not in text]
        assert len(firsts) == 1 and gone in firsts[0], said
        assert all(text == firsts[0] or text.endswith(f"has stopped: {firsts[0]}") for text in said.values()), said
        assert "is awaited\n  at schedules/tide_" in firsts[0] and "\n  missing: rank " in firsts[0] and "\n  waited " in firsts[0]
        assert [ranks.one(r, "close") for r in alive] == [[0, 0]] * 3
    assert set(os.listdir("/dev/shm")) == before


def test_who_waits_takes_no_core_and_lets_python_go_on(library, rt_kept):
    plan = CASES["1x2 all_gather"]
    given = make(plan, calls=1)
    with opened(plan, library, rt_kept, deadline_ms=DEADLINE_MS) as ranks:
        ranks.one(0, "gather", 0, given.inputs[0][0][0].tobytes().hex())
        said, took, spent, ticks = ranks.one(0, "patiently", "acquire", 0)
        assert "rank 0.0, stream scatter, call 0: room by rank 0.1 is 0, and 1 is awaited" in said and "missing: rank 0.1 has not raised room to 1" in said
        assert DEADLINE_MS / 1000 <= took < DEADLINE_MS / 1000 + 4 and spent < took / 2 and ticks > 20
        # A deadline of its own, and the other rank hears why there is nothing to wait for.
        assert "rank 0.1 stops because rank 0.0 has stopped: rank 0.0, stream scatter" in ranks.refused(1, "gather", 0, given.inputs[0][1][0].tobytes().hex())


def test_a_signal_is_seen_by_a_rank_that_waits(library, rt_kept):
    """Ctrl-C with Python's own handler, or one of the user's: it runs while the call waits, and what it raises ends the call, long before the deadline."""
    plan = CASES["1x2 all_gather"]
    given = make(plan, calls=1)
    shards = [given.inputs[0][r][0].tobytes().hex() for r in range(2)]
    with opened(plan, library, rt_kept, deadline_ms=20_000) as ranks:
        ranks.one(0, "gather", 0, shards[0])
        said, took, inside, _ = ranks.one(0, "signalled", "acquire", 0, raises=True)
        assert said == "KeyboardInterrupt of a handler" and took < 2 and inside == "the node is in a call of this thread's"
        for r in (0, 1):
            text = ranks.refused(r, "gather", r ^ 1, shards[r])
            assert "rank 0.0 was called off while it waited\n  rank 0.0, stream scatter, call 0: room by rank 0.1 is 0, and 1 is awaited" in text, text
    with opened(plan, library, rt_kept, deadline_ms=DEADLINE_MS) as ranks:
        ranks.one(0, "gather", 0, shards[0])
        said, took, _, seen_after = ranks.one(0, "signalled", "acquire", 0, raises=False)
        assert "missing: rank 0.1 has not raised room to 1" in said and seen_after < took
