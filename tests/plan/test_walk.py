"""The steps of all ranks move exactly the right bytes: whole calls are played on bytearrays, in drawn legal orders.

Every value differs in rank, call, parameter, row and column. Types are read as little-endian integers of their size, so that all sums are
exact. Memory that nobody wrote, and inputs after they were freed, are poison.
"""
import itertools
import pathlib
import random
import time
from collections import defaultdict, deque

import pytest

from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter, load_groups
from tidec.inputs.topology import parse_topology
from tidec.plan.ir import Plan
from tidec.plan.lower import lower
from tidec.plan.steps import Move, Space
from tidec.schedule.program import Event, Every, OpKind

ROOT = pathlib.Path(__file__).resolve().parents[2]
POISON = 0x5B
GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER


def planned(topo: str, shapes, collective: Collective, *knobs: str, lowering=Lowering.P2P, stored=Dtype.BF16, gathered=None, frozen=()) -> Plan:
    topology = parse_topology(topo)
    params = tuple(Parameter(f"p{i}", s, stored, requires_grad=i not in frozen) for i, s in enumerate(shapes))
    ask = Ask(topology, Group("g", 1, params, param_dtype=gathered), lowering, parse_knobs(knobs, topology.lanes, nodes=topology.nodes))
    return lower(ask, collective)


def value(call: int, rank: int, param: int, element: int) -> int:
    """A small number that tells call, rank, parameter and element apart."""
    return (call * 7919 + rank * 131 + param * 31 + element * 3) % 97 - 48


class Machine:
    """All ranks of a plan and their memory. `accumulate`: outputs start from numbers instead of zero."""

    def __init__(self, plan: Plan, calls: int, accumulate: bool = False):
        self.plan, self.calls, self.accumulate = plan, calls, accumulate
        self.counters: dict = defaultdict(int)
        self.flying: dict = defaultdict(deque)
        self.arena = {r: bytearray([POISON]) * plan.arena.bytes for r in range(plan.ranks)}
        for region, buffer in ((x, plan.program.buffer(x.buffer)) for x in plan.arena.regions):
            if buffer.rests_at_zero:
                for memory in self.arena.values():
                    memory[region.offset : region.offset + region.bytes] = bytes(region.bytes)
        self.inputs = {(e, r): self.given(e, r) for e in range(calls) for r in range(plan.ranks)}
        self.out = {(e, r): bytearray(4 * plan.layout.packed_elems) for e in range(calls) for r in range(plan.ranks)}
        for (e, r), row in self.out.items():
            for i in range(plan.layout.packed_elems):
                row[4 * i : 4 * i + 4] = (1000 * e + 10 * r + i).to_bytes(4, "little", signed=True)

    def given(self, e: int, r: int) -> dict:
        """The inputs of a rank: its shard, in stored types and padded with zeros, or its gradients."""
        layout, inputs = self.plan.layout, {}
        if self.plan.collective is REDUCE:
            item = self.plan.grad_item_bytes
            for p, param in enumerate(layout.params):
                inputs[Space.GRAD, p] = bytearray(b"".join(value(e, r, p, i).to_bytes(item, "little", signed=True) for i in range(param.real_elems)))
            return inputs
        shard = bytearray()
        for p, (param, dtype) in enumerate(zip(layout.params, self.plan.stored)):
            shard += bytes(-len(shard) % dtype.item_bytes)
            shard += b"".join(x.to_bytes(dtype.item_bytes, "little", signed=True) for x in self.rows(e, r, p))
        inputs[Space.SHARD, -1] = shard
        return inputs

    def rows(self, e: int, r: int, p: int) -> list[int]:
        """Rank r's rows of a parameter of call e, which no other rank's values enter."""
        param = self.plan.layout.params[p]
        first = r * param.shard_elems
        return [value(e, 0, p, first + i) if first + i < param.real_elems else 0 for i in range(param.shard_elems)]

    def memory(self, call: int, place, rank: int) -> bytearray:
        if place.space is Space.ARENA:
            return self.arena[rank]
        return self.out[call, rank] if place.space is Space.OUT else self.inputs[call, rank][place.space, place.param]

    def ranks(self, place) -> list[int]:
        lanes = range(self.plan.lanes) if isinstance(place.lane, Every) else [place.lane]
        return [place.node * self.plan.lanes + j for j in lanes]

    def values(self, call: int, move: Move) -> list[list[int]]:
        """The values of each row of the source; of all its ranks added, where there are several."""
        size, rows = move.src_type.item_bytes, []
        for row in range(move.rows):
            total = [0] * (move.width // size)
            for rank in self.ranks(move.src):
                memory, start = self.memory(call, move.src, rank), move.src.offset + row * move.src_pitch
                assert start >= 0 and start + move.width <= len(memory), move
                for i in range(len(total)):
                    total[i] += int.from_bytes(memory[start + i * size : start + (i + 1) * size], "little", signed=True)
            rows.append(total)
        return rows

    def write(self, call: int, move: Move, rows: list[list[int]], add: bool) -> None:
        size = move.dst_type.item_bytes
        for rank in self.ranks(move.dst):
            memory = self.memory(call, move.dst, rank)
            for row, numbers in enumerate(rows):
                for i, x in enumerate(numbers):
                    at = move.dst.offset + row * move.dst_pitch + i * size
                    assert 0 <= at and at + size <= len(memory), move
                    old = int.from_bytes(memory[at : at + size], "little", signed=True) if add else 0
                    memory[at : at + size] = (old + x).to_bytes(size, "little", signed=True)

    def raised(self, level) -> None:
        cell = (level.flag, level.key, level.owner, level.raiser)
        self.counters[cell] += 1
        assert self.counters[cell] == level.value, f"{level} is raised as number {self.counters[cell]}"

    def is_ready(self, step) -> bool:
        return step.kind is not OpKind.WAIT or all(self.counters[x.flag, x.key, x.owner, x.raiser] >= x.value for x in step.levels)

    def run(self, call: int, rank: int, step) -> None:
        plan = self.plan
        match step.kind:
            case OpKind.COPY | OpKind.CAST:
                for move in step.moves:
                    self.write(call, move, self.values(call, move), add=False)
            case OpKind.PUT:
                self.flying[rank, step.moves[0].dst.node].append((call, step))
            case OpKind.SIGNAL:
                self.raised(step.levels[0])
            case OpKind.SUM | OpKind.LAND | OpKind.ZERO:
                (extent,) = step.extents
                memory = self.memory(call, extent.place, rank)
                assert extent.place.offset + extent.bytes <= len(memory)
                if step.kind is not OpKind.LAND and not (step.seed and self.accumulate) or step.kind is OpKind.LAND and step.seed and not self.accumulate:
                    memory[extent.place.offset : extent.place.offset + extent.bytes] = bytes(extent.bytes)
                for move in step.moves:
                    self.write(call, move, self.values(call, move), add=True)
            case OpKind.FREE:
                for extent in step.extents:
                    memory = self.memory(call, extent.place, rank)
                    assert (extent.place.offset, extent.bytes) == (0, len(memory))
                    memory[:] = bytes([POISON]) * len(memory)
            case OpKind.READ:
                (extent,) = step.extents
                if call > 0:
                    self.check_landing(call - 1, rank, extent.place.offset)
                assert extent.bytes == plan.layout.landing_bytes

    def arrive(self, channel) -> None:
        call, step = self.flying[channel].popleft()
        (move,) = step.moves
        self.write(call, move, self.values(call, move), add=False)
        for level, kept in zip(step.levels, step.op.raises, strict=True):
            assert kept.event in (Event.THEN, Event.DONE)
            self.raised(level)

    def play(self, rng: random.Random) -> None:
        """Every rank's streams in a drawn order; a put arrives at any time after it was issued, in order on its way."""
        queues: dict = defaultdict(deque)
        for call, rank in itertools.product(range(self.calls), range(self.plan.ranks)):
            for step in self.plan.steps(rank, call):
                queues[rank, step.stream].append((call, step))
        while any(queues.values()) or any(self.flying.values()):
            ways = [("step", k) for k, q in queues.items() if q and self.is_ready(q[0][1])] + [("put", k) for k, q in self.flying.items() if q]
            assert ways, f"every rank waits: {[(k, q[0][1].op.label) for k, q in queues.items() if q]}"
            what, key = rng.choice(ways)
            if what == "put":
                self.arrive(key)
                continue
            # A few steps at once, so that streams drift apart.
            for _ in range(rng.choice((1, 1, 4, 40))):
                if not queues[key] or not self.is_ready(queues[key][0][1]):
                    break
                call, step = queues[key].popleft()
                self.run(call, key[0], step)

    def check_landing(self, e: int, rank: int, start: int) -> None:
        plan, want = self.plan, bytearray()
        for p, dtype in enumerate(plan.gathered):
            for r in range(plan.ranks):
                want += b"".join(x.to_bytes(dtype.item_bytes, "little", signed=True) for x in self.rows(e, r, p))
        assert self.arena[rank][start : start + plan.layout.landing_bytes] == want, f"landing of rank {rank} after call {e}"

    def check_output(self, e: int, rank: int) -> None:
        plan = self.plan
        want = [1000 * e + 10 * rank + i if self.accumulate else 0 for i in range(plan.layout.packed_elems)]
        for p, param in enumerate(plan.layout.params):
            for i in range(param.packed_elems):
                element = rank * param.shard_elems + i
                if element < param.real_elems:
                    want[param.packed_start + i] += sum(value(e, u, p, element) for u in range(plan.ranks))
        got = self.out[e, rank]
        assert [int.from_bytes(got[4 * i : 4 * i + 4], "little", signed=True) for i in range(len(want))] == want, f"output of rank {rank} in call {e}"


# Rows that divide and that do not, a vector, odd widths, fewer rows than ranks, none at all, and a parameter of several sub-slices.
SHAPES = ((5, 4), (3,), (8, 3), (1, 5), (0, 2), (7, 2, 3))


def play_gather(plan: Plan, rng, calls: int = 3) -> None:
    machine = Machine(plan, calls)
    machine.play(rng)
    landing = plan.arena.regions[0]
    for rank in range(plan.ranks):
        machine.check_landing(calls - 1, rank, landing.offset + (calls - 1) % 2 * plan.layout.landing_bytes)


def play_reduce(plan: Plan, rng, accumulate: bool, calls: int = 3) -> None:
    machine = Machine(plan, calls, accumulate)
    machine.play(rng)
    for e, rank in itertools.product(range(calls), range(plan.ranks)):
        machine.check_output(e, rank)


@pytest.mark.parametrize("topo", ["1x1", "1x2", "2x1", "2x2", "3x2", "5x1", "4x3"])
@pytest.mark.parametrize("lowering", Lowering)
def test_every_landing_is_the_parameter_major_concatenation(topo, lowering, draws):
    play_gather(planned(topo, SHAPES, GATHER, lowering=lowering), draws(3))


@pytest.mark.parametrize("topo", ["1x2", "2x2", "3x2"])
def test_a_cast_lands_the_gathered_type(topo, draws):
    plan = planned(topo, SHAPES, GATHER, stored=Dtype.FP32, gathered=Dtype.BF16)
    assert plan.has_cast and "resident_shard" not in [r.name for r in plan.arena.regions]
    play_gather(plan, draws(4))


@pytest.mark.parametrize("topo", ["1x1", "1x3", "2x1", "2x2", "3x2", "5x1", "4x3"])
@pytest.mark.parametrize("lowering", Lowering)
@pytest.mark.parametrize("accumulate", [False, True])
def test_every_output_is_the_exact_sum(topo, lowering, accumulate, draws):
    play_reduce(planned(topo, SHAPES, REDUCE, lowering=lowering, frozen=(2,)), draws(5), accumulate)


@pytest.mark.parametrize("knobs", [("W=1",), ("W=2", "n_stg=1"), ("n_part=2",), ("n_part=3", "n_out=4"), ("n_out=3", "n_stg=3"), ("W=1", "k=1", "n_out=1", "n_part=2")])
@pytest.mark.parametrize("topo", ["1x2", "4x2"])
def test_knobs_do_not_change_the_sum(topo, knobs, draws):
    play_reduce(planned(topo, ((40, 3), (5, 4), (3,)), REDUCE, *knobs), draws(6), accumulate=True)


def test_fp32_gradients_are_summed(draws):
    play_reduce(planned("2x2", SHAPES, REDUCE, stored=Dtype.FP32), draws(7), accumulate=False)


def test_steps_of_a_real_block_come_fast():
    group = load_groups(ROOT / "examples" / "llama70b.json").groups[1]
    plans = [lower(Ask(parse_topology("8x8"), group, Lowering.P2P, parse_knobs((), 8, nodes=8)), c) for c in Collective]
    start = time.perf_counter()
    counts = [sum(1 for r in range(64) for _ in plan.steps(r)) for plan in plans]
    assert time.perf_counter() - start < 4.0 and all(x > 64 * 100 for x in counts)


def test_the_host_issues_one_walk_over_all_streams():
    # Five nodes and an outbox of two blocks: level 1 sums the third and fourth block inside the rounds of the network phase.
    steps = list(planned("5x2", SHAPES, REDUCE, "n_out=2").steps(0))
    net = [i for i, s in enumerate(steps) if s.stream == "net"]
    assert [s.kind for s in steps[net[0] : net[-1]] if s.stream == "read"].count(OpKind.SUM) == 2
