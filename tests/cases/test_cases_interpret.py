"""Public reports that the prover, the graph and the interpreter answer; `row` is the number in the list of cases."""
from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tidec.errors import Exit, TidecError
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter, read_groups
from tidec.inputs.topology import parse_topology
from tidec.interpret.bytes import POISON, decode, play
from tidec.interpret.machine import simulate
from tidec.plan.arena import Arena, check_arena
from tidec.plan.ir import Plan
from tidec.plan.layout import check_layout, lay_out
from tidec.plan.lower import lower
from tidec.plan.steps import Move, Space, Step
from tidec.schedule.catalog import path, traced
from tidec.schedule.program import OpKind, Program, statements
from tidec.verify.graph import check

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
# Rows that every rank has, that some lack, and none; a row that no type aligns.
SHAPES = ((12, 4), (5, 3), (1, 7), (12,))


def plan_of(collective: Collective, topo: str, *knobs: str, lowering: Lowering = Lowering.P2P, stored: Dtype = Dtype.BF16, gathered: Dtype | None = None) -> Plan:
    topology = parse_topology(topo)
    group = Group("g", 1, tuple(Parameter(f"p{i}", s, stored) for i, s in enumerate(SHAPES)), param_dtype=gathered)
    return lower(Ask(topology, group, lowering, parse_knobs(knobs, topology.lanes, nodes=topology.nodes)), collective)


def mutant(schedule: str, old: str, new: str, lanes: int, **knobs: object) -> Program:
    text = path(schedule).read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{schedule}.py has no text {old!r}"
    return traced(schedule, lanes, source=text.replace(old, new), **knobs)


def refuted(program: Program, **more: object) -> str:
    """The code of the first claim that the prover refutes, which must be the first that it does not prove."""
    pytest.importorskip("z3")
    from tidec.verify.obligation import Verdict
    from tidec.verify.prove import prove

    report = prove(program, first_only=True, **more)
    assert report.verdict is Verdict.REFUTED and report.claims[-1].example, report.claims[-1].what
    return report.claims[-1].code


# ---- row 20: every value is its own, and no two places can be exchanged


def changed(plan: Plan, change: Callable[[Plan, int, Step], Step]) -> Callable[[int, int], Iterator[Step]]:
    return lambda rank, call: (change(plan, rank, step) for step in plan.steps(rank, call))


def swap(x: int, a: int, b: int) -> int:
    return b if x == a else a if x == b else x


def landing_offsets_swapped(plan: Plan, rank: int, step: Step) -> Step:
    """Wherever ranks 0 and 1's rows of parameter 0 land, they land at each other's place."""
    first = plan.arena.regions[0].offset
    places = [[first + bank * plan.layout.landing_bytes + plan.layout.landing_offset(0, r) for r in (0, 1)] for bank in (0, 1)]

    def moved(m: Move) -> Move:
        return replace(m, dst=replace(m.dst, offset=next((swap(m.dst.offset, *pair) for pair in places if m.dst.offset in pair), m.dst.offset)))

    return replace(step, moves=tuple(map(moved, step.moves))) if step.kind is OpKind.COPY else step


def destination_lanes_swapped(plan: Plan, rank: int, step: Step) -> Step:
    """Rank 0 pushes to lane 2 what is for lane 1, and the other way round."""
    if rank or step.kind is not OpKind.COPY:
        return step
    return replace(step, moves=tuple(replace(m, dst=replace(m.dst, lane=swap(m.dst.lane, 1, 2))) for m in step.moves))


def destination_nodes_swapped(plan: Plan, rank: int, step: Step) -> Step:
    """What rank 0 puts to node 1 goes to node 2, and the other way round."""
    if rank or step.kind is not OpKind.PUT:
        return step
    return replace(step, moves=tuple(replace(m, dst=replace(m.dst, node=swap(m.dst.node, 1, 2))) for m in step.moves))


def rows_swapped(plan: Plan, rank: int, step: Step) -> Step:
    """Rank 0 copies the first two rows of a descriptor in the place of each other."""

    def cut(m: Move) -> Iterator[Move]:
        if m.rows < 2:
            yield m
            return
        for row in range(m.rows):
            there = swap(row, 0, 1)
            yield replace(m, rows=1, src_pitch=0, dst_pitch=0, src=replace(m.src, offset=m.src.offset + row * m.src_pitch),
                          dst=replace(m.dst, offset=m.dst.offset + there * m.dst_pitch))

    return replace(step, moves=tuple(x for m in step.moves for x in cut(m))) if rank == 0 and step.kind is OpKind.COPY else step


@pytest.mark.parametrize(("collective", "topo", "change", "where"), [
    (GATHER, "2x2", landing_offsets_swapped, "parameter 0"), (GATHER, "3x1", destination_nodes_swapped, "landing"), (GATHER, "5x2", rows_swapped, "landing"),
    (REDUCE, "2x3", destination_lanes_swapped, "output"), (REDUCE, "3x1", destination_nodes_swapped, "output"), (REDUCE, "2x2", rows_swapped, "output"),
])
def test_row_20_two_exchanged_places_are_seen_on_bytes(collective, topo, change, where):
    plan = plan_of(collective, topo)
    assert play(plan).is_ok
    for seed in range(3):
        report = play(plan, seed=seed, steps=changed(plan, change))
        assert not report.is_ok and where in report.problem and "holds" in report.problem


SWAPPED = "where({0}.eq(0), 1, where({0}.eq(1), 0, {0}))"


@pytest.mark.parametrize(("schedule", "old", "new", "knobs", "codes"), [
    ("tide_ag", "land[e % landings, m, j].at(n, o)", f"land[e % landings, m, {SWAPPED.format('j')}].at(n, o)", {}, {"V105"}),
    ("tide_ag", "stage[h + k].at(to, j), then=", f"stage[h + k].at({SWAPPED.format('to')}, j), then=", {}, {"V103", "V105"}),
    ("tide_rs", "stage[U % n_stg, j].of(U).at(n, o)", f"stage[U % n_stg, j].of(U).at(n, {SWAPPED.format('o')})", dict(W=3, k=3), {"V104", "V105"}),
    ("tide_rs", "grad[p, served(c), sub(c, o), *at]", f"grad[p, served(c), {SWAPPED.format('sub(c, o)')}, *at]", dict(W=3, k=3), {"V105"}),
], ids=["landing offsets", "destination nodes", "destination lanes", "rows"])
def test_row_20_two_exchanged_blocks_are_refuted_for_every_m(schedule, old, new, knobs, codes):
    program = mutant(schedule, old, new, 3, **knobs)
    assert refuted(program) in codes
    assert not simulate(program, 5).is_ok


def test_row_20_a_layout_with_two_exchanged_starts_is_refused():
    layout = lay_out(Group("g", 1, tuple(Parameter(f"p{i}", s, Dtype.BF16) for i, s in enumerate(SHAPES))), 4)
    a, b, *rest = layout.params
    check_layout(layout)
    for starts in ("start_bytes", "packed_start"):
        swapped = replace(layout, params=(replace(a, **{starts: getattr(b, starts)}), replace(b, **{starts: getattr(a, starts)}), *rest))
        with pytest.raises(TidecError, match="V402.*do not tile"):
            check_layout(swapped)


# ---- row 63: three calls back to back, without the wait on the call before the last


@pytest.mark.parametrize("flag", ["sent", "placed"])
def test_row_63_a_buffer_of_two_banks_needs_its_wait_on_call_e_2(flag):
    program = traced("tide_rs", 2, W=2, k=1)
    (wait,) = [s.op for s in statements(program) if any(p.flag == flag and repr(p.call) == "e - 2" for p in s.op.waits)]
    buffer = dict(sent="outbox", placed="spare")[flag]
    assert simulate(program, 3, calls=3).is_ok and check(program, 3, calls=3).is_clean
    problems = check(program, 3, calls=3, drop=wait.id).problems
    assert {p.code for p in problems} <= {"V201", "V205"} and all(buffer in p.where for p in problems) and problems
    runs = [simulate(program, 3, calls=3, seed=seed, drop=wait.id) for seed in range(40)]
    corrupted = [r.problem for r in runs if not r.is_ok]
    assert corrupted and all("deadlock" not in x for x in corrupted)
    # Two calls do not meet in one bank.
    assert check(program, 3, calls=2, drop=wait.id).is_clean


@pytest.mark.parametrize(("flag", "code"), [("sent", "V205"), ("placed", "V201")])
def test_row_63_the_prover_refuses_it_for_every_m(flag, code):
    old = {"sent": "reusable(e - 2, x if full else D - 1 - (D - 1 - x) % n_out)", "placed": "s.wait(placed.call(e - 2)[p])"}[flag]
    assert refuted(mutant("tide_rs", old, "pass", 2, W=2, k=1)) == code


# ---- row 78: memory that nobody initialised holds NaN


def test_row_78_the_poison_is_a_nan_of_every_type():
    assert POISON[::-1].hex() == "7fc0"
    assert all(math.isnan(x) for dtype in (Dtype.BF16, Dtype.FP16, Dtype.FP32) for x in decode(POISON * 4, dtype))


@pytest.mark.parametrize("topo", ["1x4", "2x2", "3x2", "5x1"])
@pytest.mark.parametrize("lowering", Lowering)
@pytest.mark.parametrize(("stored", "gathered"), [(Dtype.BF16, None), (Dtype.FP32, Dtype.BF16)])
def test_row_78_no_nan_reaches_a_parameter(topo, lowering, stored, gathered):
    plan = plan_of(GATHER, topo, lowering=lowering, stored=stored, gathered=gathered)
    assert plan.layout.zero_row_ranks and plan.layout.pad_bytes
    report = play(plan, seed=78)
    assert report.is_ok, report.problem


@pytest.mark.parametrize("topo", ["1x4", "2x2", "3x2", "5x1"])
@pytest.mark.parametrize("lowering", Lowering)
@pytest.mark.parametrize("knobs", [(), ("n_part=2", "n_stg=1"), ("W=1", "k=1", "n_out=1")])
def test_row_78_no_nan_reaches_a_gradient(topo, lowering, knobs):
    report = play(plan_of(REDUCE, topo, *knobs, lowering=lowering), seed=78)
    assert report.is_ok, report.problem


def test_row_78_padding_in_a_sum_would_be_seen():
    plan = plan_of(REDUCE, "2x2")
    row_bytes = plan.slices.capacity_elems * plan.grad_item_bytes
    stage = next(r for r in plan.arena.regions if r.buffer == "stage")

    def to_the_end(plan: Plan, rank: int, step: Step) -> Step:
        """The last staged term of a sum is taken from the end of its row of the block, where there is padding."""
        if step.kind is not OpKind.SUM:
            return step
        last = max(i for i, m in enumerate(step.moves) if m.src.space is Space.ARENA)
        m = step.moves[last]
        end = stage.offset + -(-(m.src.offset + m.width - stage.offset) // row_bytes) * row_bytes
        return replace(step, moves=(*step.moves[:last], replace(m, src=replace(m.src, offset=end - m.width)), *step.moves[last + 1 :]))

    report = play(plan, steps=changed(plan, to_the_end))
    assert not report.is_ok and "holds nan" in report.problem


# ---- row 82: what must not be written straight into parameter storage


def test_row_82_two_live_calls_in_one_landing_are_refused():
    program = mutant("tide_ag", "land[e % landings, m, j].at(n, o)", "land[0, m, j].at(n, o)", 2)
    program = replace(program, body=tuple(one_bank(x) for x in program.body))
    assert refuted(program) == "V201"
    assert check(program, 2).codes == ("V201",)
    assert any(not simulate(program, 2, seed=seed).is_ok for seed in range(7))


def one_bank(item):
    """The item with the caller's read from bank 0."""
    if hasattr(item, "body"):
        return replace(item, body=tuple(map(one_bank, item.body)))
    return replace(item, reads=tuple(replace(c, key=(0, *c.key[1:])) for c in item.reads)) if item.kind is OpKind.READ else item


def test_row_82_two_buffers_in_one_place_are_refused():
    arena = plan_of(GATHER, "2x2").arena
    landing, shard, stage = arena.regions
    with pytest.raises(TidecError, match='V402.*"landing" overlaps "stage"'):
        check_arena(Arena((landing, replace(shard, offset=stage.offset + 4096), replace(stage, offset=landing.offset)), arena.bytes + 8192))


@pytest.mark.parametrize("dtype", ["fp8", "float8_e4m3fn"])
def test_row_82_an_fp8_dtype_is_a_usage_error(dtype):
    """Nothing in a group file says that a parameter has its own steps around the all-gather; the types that have them, as fp8, are not read at all."""
    with pytest.raises(TidecError, match="dtype") as caught:
        read_groups(json.dumps([{"name": "w", "shape": [4, 4], "dtype": dtype}]), file="g.json")
    assert caught.value.exit is Exit.USAGE
