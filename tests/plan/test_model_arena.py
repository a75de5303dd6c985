"""One arena for all groups: every region named, aligned and disjoint, landings shared by lifetime, stages by plan."""
import pytest

from tidec.errors import TidecError
from tidec.inputs.ask import Ask, Collective, Mode
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import Knobs
from tidec.inputs.order import Copy, Event, Moment, Order, default_order
from tidec.inputs.signature import Dtype, Group, Parameter, Signature
from tidec.inputs.topology import Topology
from tidec.plan.lower import lower
from tidec.plan.model_arena import ModelArena, ModelRegion, Need, Use, check_model_arena, lay_model_arena, need_of


def model(*entries: tuple[str, int]) -> Signature:
    return Signature(tuple(Group(name, repeat, (Parameter("w", (4,), Dtype.BF16),)) for name, repeat in entries), "m")


def placed(arena: ModelArena) -> list[tuple]:
    return [(r.name, r.offset, r.bytes, r.groups, r.fences) for r in arena.regions]


def reduces(text: str) -> Order:
    """An order in which all groups are used once and reduced in this order of letters."""
    names = sorted(set(text))
    groups = tuple(Copy(i, 0, name) for i, name in enumerate(names))
    used = tuple(Event(m, g) for g in range(len(groups)) for m in (Moment.UNSHARD, Moment.RESHARD))
    return Order(groups, (*used, *(Event(m, names.index(c)) for c in text for m in (Moment.REDUCE, Moment.READ))), 0)


def stages(text: str, **sizes: int) -> list[tuple[str, int, int]]:
    """(groups, bytes, fences) of the regions of reduce-scatters for groups with a plan each."""
    order = reduces(text)
    arena = lay_model_arena(order, [Need(reduce_stage_bytes=sizes[c.name], reduce_plan=c.name) for c in order.groups], mode=Mode.IN_PLACE)
    return [("".join(order.groups[g].name for g in r.groups), r.bytes, r.fences) for r in arena.regions]


def test_a_model_worked_by_hand():
    # A ring of embed, ten blocks and a head: landings of 1000 and 700 bytes; every stage is that of the largest, and each change of plan has a fence.
    order = default_order(model(("embed", 1), ("block", 10), ("head", 1)))
    needs, every = [Need(1000, 10, 90, 800, "E"), Need(600, 6, 50, 500, "B"), Need(700, 7, 60, 900, "H")], tuple(range(12))
    assert placed(lay_model_arena(order, needs, mode=Mode.IN_PLACE)) == [
        ("landing.0", 0, 1000, every[::2], 0), ("landing.1", 1024, 700, every[1::2], 0), ("shard", 2048, 10, every, 0), ("gather_stage", 2560, 90, every, 0),
        ("reduce_stage.0", 3072, 900, every, 3),
    ]


def test_plans_share_a_stage_where_fences_are_few():
    assert stages("aaaaaaaabbbbbbbb", a=5, b=9) == [("ab", 9, 2)]
    assert stages("abababab", a=5, b=9) == [("a", 5, 0), ("b", 9, 0)]
    assert stages("aaaaaaaaa", a=5) == [("a", 5, 0)]
    # A third plan joins the region that grows least by it.
    assert stages("abababababababccccccc", a=5, b=9, c=8) == [("a", 5, 0), ("bc", 9, 2)]


def test_groups_of_one_plan_share_its_stage_and_groups_without_plans_have_none():
    order = reduces("abcd")
    needs = [Need(reduce_stage_bytes=5, reduce_plan="P"), Need(), Need(reduce_stage_bytes=5, reduce_plan="P"), Need(landing_bytes=7)]
    assert placed(lay_model_arena(order, needs, mode=Mode.IN_PLACE)) == [("landing.0", 0, 7, (3,), 0), ("reduce_stage.0", 512, 5, (0, 2), 0)]
    assert lay_model_arena(order, [Need()] * 4, mode=Mode.IN_PLACE) == ModelArena(order, Mode.IN_PLACE, (), 0)


def test_a_plan_that_the_order_never_calls_has_its_stage():
    order = Order((Copy(0, 0, "a"),), (Event(Moment.UNSHARD, 0), Event(Moment.RESHARD, 0)), 1)
    assert placed(lay_model_arena(order, [Need(9, 0, 0, 3, "P")], mode=Mode.IN_PLACE))[1:] == [("reduce_stage.0", 512, 3, (0,), 0)]


def test_what_a_group_needs_is_what_its_plans_lay_out():
    group = Group("g", 1, (Parameter("a", (5, 4), Dtype.BF16), Parameter("b", (3,), Dtype.BF16)))
    gather, reduce = (lower(Ask(Topology(3, 2), group, Lowering.P2P, Knobs(2, 2)), collective) for collective in Collective)
    # As in the arena worked by hand: S = 10, two slots of stage; a reduce-scatter is nothing but its stages, and ends at its last byte's 512.
    assert need_of(gather, reduce) == Need(60, 10, gather.arena.bytes - 1024, reduce.arena.bytes, reduce.digest)
    assert need_of(None, reduce) == Need(reduce_stage_bytes=reduce.arena.bytes, reduce_plan=reduce.digest) and need_of(None, None) == Need()
    cast = Group("g", 1, group.params, param_dtype=Dtype.FP32)
    assert need_of(lower(Ask(Topology(3, 2), cast, Lowering.P2P, Knobs(2, 2)), Collective.ALL_GATHER)).shard_bytes == 0


def test_an_arena_past_64_bits_is_refused():
    with pytest.raises(TidecError, match=r"P005 bad-shape\]: the arena of the model would be"):
        lay_model_arena(reduces("a"), [Need(2**63 - 2, 600)], mode=Mode.IN_PLACE)


def test_a_broken_arena_is_refused():
    order = reduces("ab")
    for offset, size, want in ((0, 10, "overlaps"), (16, 10, "not aligned"), (512, 5000, "passes the end")):
        regions = (ModelRegion("landing.0", Use.LANDING, 0, 10, (0,)), ModelRegion("landing.1", Use.LANDING, offset, size, (1,)))
        with pytest.raises(TidecError, match=want):
            check_model_arena(ModelArena(order, Mode.IN_PLACE, regions, 1024))
