"""What is asked decides the schedule, its arguments and its layout."""
import dataclasses

import pytest

from tidec.errors import TidecError
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.lower import lower, schedule_call

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
PARAMS = (Parameter("a", (5, 4), Dtype.FP32), Parameter("b", (3,), Dtype.FP32))


def asked(topo, *knobs, lowering=Lowering.P2P, gathered=None, landings=2) -> Ask:
    topology = parse_topology(topo)
    return Ask(topology, Group("g", 1, PARAMS, param_dtype=gathered, landings=landings), lowering, parse_knobs(knobs, topology.lanes, nodes=topology.nodes))


def test_knobs_become_the_arguments_of_the_schedule():
    assert schedule_call(asked("4x2"), GATHER) == ("tide_ag", (("cast", False), ("multicast", False)))
    assert schedule_call(asked("4x2", lowering=Lowering.NVLS, gathered=Dtype.BF16), GATHER) == ("tide_ag", (("cast", True), ("multicast", True)))
    name, arguments = schedule_call(asked("4x2", "W=1", "n_part=3", "n_out=2", "n_stg=5"), REDUCE)
    assert name == "tide_rs" and dict(arguments) == dict(W=1, k=1, multicast=False, n_out=2, n_part=3, n_stg=5, chunks=1, stripes=1)
    assert dict(schedule_call(asked("4x2"), REDUCE)[1])["n_out"] == "full"


def test_a_group_says_how_many_landings_its_all_gather_has():
    assert schedule_call(asked("4x2", landings=1), GATHER) == ("tide_ag", (("cast", False), ("landings", 1), ("multicast", False)))
    assert schedule_call(asked("4x2", landings=1), REDUCE) == schedule_call(asked("4x2"), REDUCE)
    assert [lower(asked("4x2", landings=n), GATHER).landings for n in (1, 2)] == [1, 2] and lower(asked("4x2"), REDUCE).landings == 0


def test_with_one_landing_the_parameters_of_a_call_are_used_before_the_next_call_begins():
    """By hand, of two lanes. Call 7 reads what call 6 landed: before it tells of room with one landing, behind all else with two."""
    def told(landings):
        steps = list(lower(asked("1x2", landings=landings), GATHER).steps(1, 7))
        return [(s.stream, s.kind.value) for s in steps]

    use = [("compute", "wait")] * 2 + [("compute", "read"), ("compute", "signal")]
    assert told(1)[:7] == [*use, ("entry", "wait"), *[("entry", "signal")] * 2]
    assert told(2)[:3] == told(1)[4:7] and told(2)[-4:] == use and told(2)[:-4] == told(1)[4:]


def test_calls_land_in_turn_or_in_the_only_landing():
    for landings, wanted in ((1, [0, 0, 0]), (2, [1, 0, 1])):
        plan = lower(asked("1x2", landings=landings), GATHER)
        reads = [s.extents[0].place.offset for e in range(3) for s in plan.steps(0, e) if s.kind.value == "read"]
        assert reads == [plan.layout.landing_bytes * b for b in wanted]


def test_a_round_is_as_small_as_the_nodes_where_the_outbox_is():
    # Three nodes: a round of k = 4 has two blocks, and an outbox of two holds them; a larger machine would need four.
    assert dict(schedule_call(asked("3x8", "k=4", "n_out=2", "n_part=2"), REDUCE)[1])["k"] == 2
    assert dict(schedule_call(asked("3x8", "k=4", "n_out=4", "n_part=2"), REDUCE)[1])["k"] == 4
    plan = lower(asked("3x8", "k=4", "n_out=2", "n_part=2"), REDUCE)
    assert [str(s.op.spot) for s in plan.steps(0)] == [str(s.op.spot) for s in lower(asked("3x8", "k=2", "n_out=2", "n_part=2"), REDUCE).steps(0)]


def test_a_cast_follows_from_the_types():
    plain, cast = lower(asked("2x2"), GATHER), lower(asked("2x2", gathered=Dtype.BF16), GATHER)
    assert (plain.has_cast, cast.has_cast) == (False, True)
    assert cast.stored == (Dtype.FP32,) * 2 and cast.gathered == (Dtype.BF16,) * 2 and cast.layout.shard_bytes * 2 == plain.layout.shard_bytes
    # Gradients are in the gathered type.
    assert lower(asked("2x2", gathered=Dtype.BF16), REDUCE).gradient_dtype is Dtype.BF16


def test_the_plan_is_the_branch_of_its_node_count():
    one, many = (lower(asked(t), REDUCE) for t in ("1x2", "2x2"))
    assert [b.name for b in one.program.buffers] == ["rows", "row_stage", "result"]
    assert "inbox" in [b.name for b in many.program.buffers] and "rows" not in [b.name for b in many.program.buffers]
    assert (many.nodes, many.lanes, many.ranks, many.schedule, many.num_parts) == (2, 2, 4, "tide_rs", 1)


@pytest.mark.parametrize(("chunks", "few", "many", "is_same"), [(1, 1, 2, True), (2, 2, 4, True), (4, 3, 4, False)])
def test_slots_beyond_the_chunks_of_a_call_are_never_used(chunks, few, many, is_same):
    plans = [lower(asked("1x2", f"chunks={chunks}", f"n_stg={n_stg}"), REDUCE) for n_stg in (few, many)]
    ops = [[(s.op.kind, s.op.stream, s.moves, s.extents, s.levels) for rank in (0, 1) for call in range(3) for s in plan.steps(rank, call)] for plan in plans]
    assert (ops[0] == ops[1]) is is_same
    assert plans[0].arena.staging_bytes * many == plans[1].arena.staging_bytes * few


def test_an_outbox_below_a_round_is_refused():
    ask = asked("4x2", "n_out=2")
    broken = dataclasses.replace(ask)
    object.__setattr__(broken, "knobs", dataclasses.replace(ask.knobs, n_out=1))
    with pytest.raises(TidecError, match="P006.*min\\(k, W, M-1\\) = min\\(2, 2, 3\\) = 2"):
        lower(broken, REDUCE)


def test_groups_with_equal_knobs_share_one_program():
    one, other = lower(asked("3x2"), REDUCE), lower(asked("9x2"), REDUCE)
    assert one.program is other.program
