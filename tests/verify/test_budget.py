"""Claims about the arena of a model find what is wrong with it, by themselves."""
from dataclasses import replace

import pytest

from tidec.inputs.ask import Mode
from tidec.inputs.order import Copy, Event, Moment, Order
from tidec.plan.model_arena import Need, Use, lay_model_arena
from tidec.verify.budget import model_claims
from tidec.verify.obligation import Verdict

WORDS = {"u": Moment.UNSHARD, "r": Moment.RESHARD, "g": Moment.REDUCE, "x": Moment.READ}


def order_of(text: str, *, ahead: int = 0) -> Order:
    events = tuple(Event(WORDS[word[0]], int(word[1:])) for word in text.split())
    return Order(tuple(Copy(i, 0, f"g{i}") for i in range(1 + max(e.group for e in events))), events, ahead)


def refuted(arena, needs) -> list[str]:
    return [c.diagnostic.sentence for c in model_claims(arena, needs) if c.verdict is Verdict.REFUTED]


def merged(text: str, *, mode: Mode = Mode.IN_PLACE, ahead: int = 0) -> list[str]:
    """What is refuted where all groups share one landing."""
    order = order_of(text, ahead=ahead)
    needs = [Need(landing_bytes=8)] * len(order.groups)
    arena = lay_model_arena(order, needs, mode=mode)
    assert refuted(arena, needs) == []
    everyone = replace(arena.regions[0], groups=tuple(range(len(order.groups))))
    return refuted(replace(arena, regions=(everyone,)), needs)


def test_an_arena_as_it_is_laid_is_proved():
    needs = [Need(10, 1, 2, 3, "P"), Need(20, 2, 4, 6, "Q")]
    arena = lay_model_arena(order_of("u0 r0 u1 u0 r1 g1 x1 r0 g0 x0", ahead=1), needs, mode=Mode.SLOT_REUSE)
    assert [(c.code, c.scope, c.verdict) for c in model_claims(arena, needs)] == [("V402", "this model", Verdict.PROVED)] * 3


TOGETHER = 'groups "g0" and "g1" live in region "landing.0" at the same time'


@pytest.mark.parametrize("text, mode, want", [
    ("u0 u1 r0 r1", Mode.IN_PLACE, [TOGETHER]), ("u0 r0 u1 r1", Mode.IN_PLACE, []), ("u1 r1 u0", Mode.IN_PLACE, [TOGETHER]),
    ("u0 r0 g0 u1 x0 r1", Mode.IN_PLACE, []), ("u0 r0 g0 u1 x0 r1", Mode.SLOT_REUSE, [TOGETHER]), ("u0 g0 r0 u1 x0 r1", Mode.SLOT_REUSE, []),
    ("u0 r0 u1 r1 g0 x0", Mode.SLOT_REUSE, [TOGETHER]), ("u0 r0 u0 r0 u1 r1", Mode.IN_PLACE, []),
])
def test_groups_that_live_together_may_not_share(text, mode, want):
    assert merged(text, mode=mode) == want


def test_neighbours_may_not_share():
    assert merged("u0 r0 u1 r1 u2 r2", ahead=1) == ['groups "g0" and "g1" are gathered one soon after the other into region "landing.0"']


def test_every_group_needs_room_for_everything_once():
    order, needs = order_of("u0 r0 u1 r1"), [Need(10, 1, 2, 3, "P"), Need(20, 2, 4, 6, "Q")]
    arena = lay_model_arena(order, needs, mode=Mode.IN_PLACE)
    for use in Use:
        small = tuple(replace(r, bytes=r.bytes - 1) if r.use is use else r for r in arena.regions)
        assert [f"for its {use.value}" in s for s in refuted(replace(arena, regions=small), needs)] == [True]
        assert [f"for its {use.value}" in s for s in refuted(replace(arena, regions=tuple(r for r in arena.regions if r.use is not use)), needs)] == [True]
    twice = (*arena.regions, replace(arena.regions[0], name="again", offset=arena.bytes))
    assert 'group "g0" has no room for its landing' in refuted(replace(arena, regions=twice, bytes=arena.bytes + 512), needs)
