"""The reference meaning of values: rounding as torch's, sums in the stated order, and what an order or a dropped step changes."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.interpret.bits import POISON, Given, carry_out, narrowed, poisoned, widened, zero_ranges
from tidec.plan.ir import Plan
from tidec.plan.lower import lower
from tidec.run.compare import first_difference
from tidec.run.made import Kind, make
from tidec.schedule.program import OpKind

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
AWKWARD = ((7, 3), (33,), (0, 4), (50, 6), (1, 2, 2))


def plan_of(topo: str, collective: Collective, *shapes: tuple[int, ...], knobs: tuple[str, ...] = (), dtype: Dtype = Dtype.FP32, gathered: Dtype | None = None,
            lowering: Lowering = Lowering.P2P) -> Plan:
    topology = parse_topology(topo)
    group = Group("g", 1, tuple(Parameter(f"p{i}", s, dtype) for i, s in enumerate(shapes)), param_dtype=gathered)
    return lower(Ask(topology, group, lowering, parse_knobs(knobs, topology.lanes, nodes=topology.nodes)), collective)


def given_of(rows: list[list[float]], before: list[float]) -> Given:
    """One call of one parameter: a gradient a rank."""
    return Given((tuple((np.array(r, np.float32).view(np.uint8),) for r in rows),), (tuple(np.array([b], np.float32).view(np.uint8) for b in before),))


# ---- rounding


def edges(dtype: type) -> np.ndarray:
    """Every exponent, with mantissas around each place where rounding turns, both signs; infinities among them, NaN not."""
    mantissas = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x10000, 0x18000, 0x7FFFFF], np.uint32)
    bits = (np.arange(255, dtype=np.uint32)[:, None] << 23 | mantissas).ravel()
    bits = np.concatenate([bits, bits | np.uint32(1 << 31), np.array([0x7F800000, 0xFF800000], np.uint32)])
    return bits.view(np.float32).astype(dtype)


@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP16])
def test_rounding_is_that_of_torch(dtype):
    torch = pytest.importorskip("torch")
    numbers = np.concatenate([edges(np.float32), np.random.default_rng(5).integers(0, 2**32, 200_000, np.uint32).view(np.float32)])
    numbers = numbers[~np.isnan(numbers)]
    wanted = torch.from_numpy(numbers).to({Dtype.BF16: torch.bfloat16, Dtype.FP16: torch.float16}[dtype]).view(torch.int16).numpy()
    assert np.array_equal(narrowed(numbers, dtype).view(np.int16), wanted)


@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP16])
def test_widening_is_that_of_torch(dtype):
    torch = pytest.importorskip("torch")
    raw = np.arange(2**16, dtype=np.uint16)
    kind = {Dtype.BF16: torch.bfloat16, Dtype.FP16: torch.float16}[dtype]
    wanted = torch.from_numpy(raw.view(np.int16)).view(kind).to(torch.float32).numpy()
    got = widened(raw if dtype is Dtype.BF16 else raw.view(np.float16), dtype)
    assert np.array_equal(got, wanted, equal_nan=True)


def test_sums_are_those_of_torch_in_that_order():
    torch = pytest.importorskip("torch")
    plan = plan_of("1x4", REDUCE, (40, 5), dtype=Dtype.BF16)
    given = make(plan, calls=1)
    grads = [torch.from_numpy(given.inputs[0][r][0].view(np.int16)).view(torch.bfloat16).to(torch.float32) for r in range(4)]
    for r, got in enumerate(carry_out(plan, given, alpha=0.3)[0]):
        total = torch.zeros(200)
        for lane in [*(i for i in range(4) if i != r), r]:
            total += grads[lane]
        assert np.array_equal(got.view(np.float32), (total * torch.tensor(0.3)).numpy()[50 * r : 50 * r + 50])


def test_every_nan_becomes_the_quiet_one():
    nans = np.array([0x7F800001, 0xFFC00000, 0x7FFFFFFF], np.uint32).view(np.float32)
    assert narrowed(nans, Dtype.BF16).tolist() == [POISON] * 3 and narrowed(nans, Dtype.FP16).view(np.uint16).tolist() == [0x7E00] * 3


def test_poison_is_nan_in_bf16_fp16_and_fp32():
    raw = poisoned(64)
    assert raw.size == 64 and poisoned(3).size == 3
    assert np.isnan(widened(raw.view(np.uint16), Dtype.BF16)).all() and all(np.isnan(raw.view(t)).all() for t in (np.float16, np.float32))


# ---- sums, by hand: of large and small numbers only one order keeps the small one


def test_the_own_lane_is_added_last():
    plan = plan_of("1x2", REDUCE, (2,))
    # 0 + 2**24 + 1 loses the 1; 0 + 1 + 2**24 too, but -2**24 after 2**24 leaves what was small.
    (out,) = carry_out(plan_of("1x3", REDUCE, (3,)), given_of([[2.0**24] * 3, [1.0] * 3, [-(2.0**24)] * 3], [0.0] * 3))
    # Rank 0 adds lanes 1, 2, then 0: (1 - 2**24) + 2**24. Rank 1 adds 0, 2, then 1. Rank 2 adds 0, 1, then 2: the 1 is lost.
    assert [x.view(np.float32)[0] for x in out] == [1.0, 1.0, 0.0]
    (out,) = carry_out(plan, given_of([[1.0, 2.0], [10.0, 20.0]], [0.0] * 2))
    assert [x.view(np.float32)[0] for x in out] == [11.0, 22.0]


def test_alpha_scales_each_node_once_and_not_what_the_caller_had():
    for topo in ("1x2", "2x1"):
        plan = plan_of(topo, REDUCE, (2,))
        (out,) = carry_out(plan, given_of([[1.0, 2.0], [10.0, 20.0]], [100.0, 200.0]), alpha=0.5, accumulate=True)
        assert [x.view(np.float32)[0] for x in out] == [105.5, 211.0]
        (out,) = carry_out(plan, given_of([[1.0, 2.0], [10.0, 20.0]], [100.0, np.nan]), alpha=0.5)
        assert [x.view(np.float32)[0] for x in out] == [5.5, 11.0]


def test_a_sum_begins_at_zero_so_minus_zero_is_lost():
    (out,) = carry_out(plan_of("2x1", REDUCE, (2,)), given_of([[-0.0, -0.0]] * 2, [0.0] * 2))
    assert [np.signbit(x.view(np.float32)[0]) for x in out] == [False, False]


def test_infinities_that_meet_are_nan():
    (out,) = carry_out(plan_of("2x1", REDUCE, (2,)), given_of([[np.inf, np.inf], [-np.inf, 1.0]], [0.0] * 2))
    assert np.isnan(out[0].view(np.float32)[0]) and out[1].view(np.float32)[0] == np.inf


def stated(plan: Plan, given: Given, alpha: float, accumulate: bool) -> np.ndarray:
    """The outputs of call 0 from the words of the design: seed, then by wave and destination lane; a node by lanes without the own one, then the own."""
    M, L, W = plan.nodes, plan.lanes, dict(plan.knobs)["W"]
    num_waves, f32 = -(-M // W), np.float32
    size = plan.slices.capacity_elems
    outputs = []
    for n in range(M):
        for j in range(L):
            r = n * L + j
            rows = []                                          # what each rank adds to this row: its gradients, padding as 0
            for rank in range(plan.ranks):
                row = np.zeros(plan.layout.packed_elems, f32)
                for p, param in enumerate(plan.layout.params):
                    mine = given.inputs[0][rank][p].view(f32)[r * param.shard_elems : (r + 1) * param.shard_elems]
                    row[param.packed_start : param.packed_start + mine.size] = mine
                rows.append(row)
            out = given.before[0][r].view(f32).copy() if accumulate else np.zeros(plan.layout.packed_elems, f32)
            for x0 in range(0, plan.layout.packed_elems, size):
                b, here = x0 // size % L, slice(x0, x0 + size)
                for w in range(num_waves):
                    blocks = {}                                # destination lane -> partial
                    for c in [*range(w * W + 1, min(w * W + W, M - 1) + 1), *([M] if w == num_waves - 1 else [])]:
                        lane = (b - (0 if c == M else c)) % L
                        node = (n - c) % M
                        total = np.zeros(out[here].shape, f32)
                        for i in [*(i for i in range(L) if i != lane), lane]:
                            total += rows[node * L + i][here]
                        blocks[lane] = total * f32(alpha)
                    for lane in range(L):
                        out[here] += blocks.get(lane, f32(0))
            outputs.append(out)
    return np.array(outputs)


@pytest.mark.parametrize(("topo", "knobs"), [("2x1", ()), ("2x2", ()), ("3x2", ("W=1",)), ("5x2", ("n_part=2", "n_out=2")), ("4x3", ("W=3", "k=2")), ("5x4", ("W=2",))])
@pytest.mark.parametrize("accumulate", [False, True])
def test_the_order_of_a_sum_is_the_stated_one(topo, knobs, accumulate):
    plan = plan_of(topo, REDUCE, *AWKWARD, knobs=knobs)
    given = make(plan, calls=1, seed=3, accumulate=accumulate)
    got = np.array([x.view(np.float32) for x in carry_out(plan, given, alpha=0.3, accumulate=accumulate)[0]])
    assert np.array_equal(got, stated(plan, given, 0.3, accumulate))


def test_made_numbers_show_the_order():
    plan = plan_of("4x2", REDUCE, *AWKWARD, dtype=Dtype.BF16)
    given = make(plan, calls=1)
    turned = Given((given.inputs[0][::-1],), given.before)
    a, b = (np.concatenate([x.view(np.float32) for x in carry_out(plan, g)[0]]) for g in (given, turned))
    assert 0.02 < np.mean(a != b) < 0.9


# ---- made data


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP16, Dtype.FP32])
def test_made_data_differ_in_every_rank_parameter_row_and_column(kind, dtype):
    given = make(plan_of("2x2", REDUCE, (16, 16), (16, 16), dtype=dtype), calls=2, kind=kind)
    tables = [given.inputs[e][r][p].reshape(256, -1) for e in range(2) for r in range(4) for p in range(2)]
    assert len({t.tobytes() for t in tables}) == len(tables)
    for t in tables:
        rows, columns = t.reshape(16, -1), t.reshape(16, 16, -1).swapaxes(0, 1).reshape(16, -1)
        assert len({r.tobytes() for r in rows}) == 16 == len({c.tobytes() for c in columns})


# ---- orders and faults


@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("plan", [
    plan_of("3x2", REDUCE, *AWKWARD, knobs=("n_out=1", "k=1", "n_part=2")), plan_of("2x3", REDUCE, *AWKWARD, lowering=Lowering.NVLS), plan_of("1x3", REDUCE, *AWKWARD),
    plan_of("5x2", GATHER, *AWKWARD), plan_of("3x2", GATHER, *AWKWARD, gathered=Dtype.BF16),
], ids=["rs", "rs nvls", "rs one node", "ag", "ag cast"])
def test_no_order_changes_a_bit(plan, seed):
    given = make(plan, calls=3, is_poisoned=True)
    assert first_difference(plan, carry_out(plan, given, is_poisoned=True, seed=seed), carry_out(plan, given, is_poisoned=True)) is None


def test_what_is_gathered_is_what_was_given():
    plan = plan_of("2x2", GATHER, (5, 3), (2,), dtype=Dtype.BF16)
    given = make(plan, calls=2, is_poisoned=True)
    for e, row in enumerate(carry_out(plan, given, is_poisoned=True)):
        for landing in row:
            for param in plan.layout.params:
                at = param.start_bytes * 4
                wanted = np.concatenate([given.inputs[e][r][0][param.start_bytes : param.start_bytes + param.shard_bytes] for r in range(4)])
                assert np.array_equal(landing[at : at + wanted.size], wanted)


@pytest.mark.parametrize("kind", [OpKind.COPY, OpKind.PUT, OpKind.ZERO, OpKind.SUM, OpKind.LAND])
def test_a_step_that_does_nothing_shows(kind):
    plan = plan_of("5x2", REDUCE, (40, 5), (7,))
    given = make(plan, calls=3, is_poisoned=True)

    def steps(rank: int, call: int):
        for step in plan.steps(rank, call):
            if step.kind is kind is OpKind.ZERO:
                step = replace(step, op=replace(step.op, kind=OpKind.JOIN))
            elif step.kind is kind:
                step = replace(step, moves=tuple(replace(m, rows=0) for m in step.moves))
            yield step

    wanted = carry_out(plan, given, is_poisoned=True)
    assert first_difference(plan, carry_out(plan, given, is_poisoned=True, steps=steps), wanted) is not None


def test_a_step_that_never_comes_is_a_deadlock():
    plan = plan_of("2x1", REDUCE, (3, 2))
    with pytest.raises(ValueError, match="every rank waits"):
        carry_out(plan, make(plan, calls=1), steps=lambda rank, call: (s for s in plan.steps(rank, call) if not (s.kind is OpKind.PUT and rank == 0)))


def test_only_the_inbox_must_begin_as_zero():
    plan = plan_of("3x2", REDUCE, *AWKWARD)
    (inbox,) = [r for r in plan.arena.regions if r.buffer == "inbox"]
    assert zero_ranges(plan) == ((inbox.offset, inbox.bytes),) and zero_ranges(plan_of("3x2", GATHER, *AWKWARD)) == ()
