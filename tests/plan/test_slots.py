"""Two groups that live at the same time never share a landing, whatever the order of use."""
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tidec.errors import TidecError
from tidec.inputs.ask import Mode
from tidec.inputs.order import Copy, Event, Moment, Order, default_order, read_order
from tidec.inputs.signature import Dtype, Group, Parameter, Signature
from tidec.plan.model_arena import Need, lay_model_arena
from tidec.plan.slots import Slot, assign_slots
from tidec.verify.budget import model_claims
from tidec.verify.obligation import Verdict

U, R, G, READ = Moment.UNSHARD, Moment.RESHARD, Moment.REDUCE, Moment.READ
LETTERS = {"u": (U,), "r": (R,), "g": (G,), "x": (READ,), "b": (R, G, READ)}


def order_of(text: str, *, ahead: int = 1) -> Order:
    """u3 = unshard group 3, r reshard, g reduce, x its source is read, b = r g x: the end of a backward."""
    events = tuple(Event(moment, int(word[1:])) for word in text.split() for moment in LETTERS[word[0]])
    count = max(e.group for e in events) + 1
    return Order(tuple(Copy(i, 0, f"g{i}") for i in range(count)), events, ahead)


def slots_of(text: str, *sizes: int, mode: Mode = Mode.IN_PLACE, ahead: int = 1) -> list[tuple[tuple[int, ...], int]]:
    order = order_of(text, ahead=ahead)
    return [(s.groups, s.bytes) for s in assign_slots(order, sizes or [1] * len(order.groups), mode=mode)]


def model(*entries: tuple[str, int]) -> Signature:
    return Signature(tuple(Group(name, repeat, (Parameter("w", (4,), Dtype.BF16),)) for name, repeat in entries), "m")


def living(order: Order, mode: Mode):
    """What lies in landings before each event, and that event, read off from the definition: a set of groups, gradients among them."""
    for at in range(len(order.events)):
        held = set()
        for g in range(len(order.groups)):
            past = [e.moment for e in order.events[:at] if e.group == g]
            if U not in past:
                continue
            since = past[len(past) - past[::-1].index(U):]
            later = [e.moment for e in order.events[at:] if e.group == g and e.moment in (U, G)]
            vacated = since[since.index(R):] if R in since else []
            has_gradients = READ not in vacated[vacated.index(G):] if G in vacated else later[:1] == [G]
            if R not in since or (mode is Mode.SLOT_REUSE and has_gradients):
                held.add(g)
        yield held, order.events[at]


def check(order: Order, slots: tuple[Slot, ...], sizes, mode: Mode) -> None:
    """Every planned group has one landing, large enough, and no all-gather is issued into one that is taken."""
    slot_of = {g: s for s, slot in enumerate(slots) for g in slot.groups}
    assert sorted(g for slot in slots for g in slot.groups) == [g for g, size in enumerate(sizes) if size]
    assert all(slot.bytes == max(sizes[g] for g in slot.groups) for slot in slots)
    gathered = []
    for held, event in living(order, mode):
        if event.moment is U and sizes[event.group]:
            near = {g for g in (*held, *gathered[max(0, len(gathered) - order.ahead):]) if sizes[g] and g != event.group}
            assert slot_of[event.group] not in {slot_of[g] for g in near}, (event, near)
            gathered.append(event.group)
    unsharded = {e.group for e in order.events if e.moment in (U, R) and sizes[e.group]}
    for g in unsharded:
        if [e.moment for e in order.events if e.group == g and e.moment in (U, R)][-1] is U:
            assert slots[slot_of[g]].groups == (g,)


@pytest.mark.parametrize("mode", Mode)
def test_the_default_order_is_a_ring_of_two_sized_for_their_groups(mode):
    # g mod 2: embed 20 with the even ones, the head 15 with the odd ones; the last group is kept from forward to backward and takes its turn.
    slots = assign_slots(default_order(model(("embed", 1), ("block", 6), ("head", 1))), [20, *[10] * 6, 15], mode=mode)
    assert slots == (Slot((0, 2, 4, 6), 20), Slot((1, 3, 5, 7), 15))


def test_the_root_has_a_landing_of_its_own():
    slots = assign_slots(default_order(model(("root", 1), ("block", 5))), [30, *[10] * 5], mode=Mode.IN_PLACE)
    assert slots == (Slot((0,), 30), Slot((1, 3, 5), 10), Slot((2, 4), 10))


def test_a_group_that_the_order_leaves_unsharded_shares_with_none():
    assert slots_of("u0 r0 u1 u2 r2 u3 r3", ahead=0) == [((0, 2, 3), 1), ((1,), 1)]
    assert slots_of("u1 r1 u2 r2 u0", ahead=0) == [((1, 2), 1), ((0,), 1)]


def test_neighbouring_all_gathers_have_different_landings():
    assert slots_of("u0 r0 u1 r1 u2 r2", ahead=0) == [((0, 1, 2), 1)]
    assert slots_of("u0 r0 u1 r1 u2 r2", ahead=1) == [((0, 2), 1), ((1,), 1)]
    assert slots_of("u0 r0 u1 r1 u2 r2", ahead=2) == [((0,), 1), ((1,), 1), ((2,), 1)]


def test_the_largest_first_where_that_needs_less():
    # In order of use 3 joins 0 and 1 needs a landing of eight; with the largest first 1 joins 0, and 3 needs one of five.
    assert slots_of("u2 r2 u0 r0 u3 u1 r1 r3", 13, 8, 1, 5, ahead=0) == [((0, 1, 2), 13), ((3,), 5)]


def test_the_order_of_use_where_that_needs_less():
    # A chain. With the largest first both ends would share, and the middle two need a landing each.
    assert slots_of("u0 u1 r0 u2 r1 u3 r2 r3", 5, 4, 4, 5, ahead=0) == [((0, 2), 5), ((1, 3), 5)]


def test_with_slot_reuse_gradients_keep_the_landing_until_they_are_read():
    assert slots_of("u0 r0 g0 u1 x0 r1", ahead=0) == [((0, 1), 1)]
    assert slots_of("u0 r0 g0 u1 x0 r1", ahead=0, mode=Mode.SLOT_REUSE) == [((0,), 1), ((1,), 1)]
    assert slots_of("u0 r0 g0 x0 u1 r1", ahead=0, mode=Mode.SLOT_REUSE) == [((0, 1), 1)]
    # Gradients of a group that is still unsharded cannot lie there.
    assert slots_of("u0 g0 r0 u1 x0 r1", ahead=0, mode=Mode.SLOT_REUSE) == [((0, 1), 1)]
    # The read is that of the reduce before; the landing waits for the next one.
    assert slots_of("u0 g0 r0 x0 u1 r1 g0 x0", ahead=0, mode=Mode.SLOT_REUSE) == [((0,), 1), ((1,), 1)]


def test_a_group_is_not_gathered_over_its_own_gradients():
    assert slots_of("u0 r0 g0 u0 x0 r0", ahead=0) == [((0,), 1)]
    with pytest.raises(TidecError, match=r'P002 malformed\]: group "g0" is unsharded again before its gradients are read'):
        slots_of("u0 r0 g0 u0 x0 r0", mode=Mode.SLOT_REUSE)


def test_a_group_without_a_plan_has_no_landing():
    assert slots_of("u0 u1 u2 r0 r1 r2", 5, 0, 7) == [((0,), 5), ((2,), 7)]


FORWARD, BACKWARD = "u0 r0 u1 r1 u2", "u1 b2 u0 b1 b0"
BY_HAND = {                                        # a step or a few, `ahead`, and how many landings they need
    "one step": (f"{FORWARD} {BACKWARD}", 1, 2),
    # Three groups in a ring: the last of an eval forward and the first of the next one are neighbours with equal parity.
    "eval forwards between steps": (f"{FORWARD} {BACKWARD} {FORWARD} r2 {FORWARD} r2 {FORWARD} {BACKWARD}", 1, 3),
    "eval forwards between steps, even": ("u0 r0 u1 r1 u2 r2 u3 r3 u0 r0 u1 r1 u2 r2 u3 u2 b3 u1 b2 u0 b1 b0", 1, 2),
    "a stale prefetch after an eval forward": (f"{FORWARD} r2 {FORWARD} u0 u1 b2 r0 u0 b1 b0", 1, 3),
    "two forwards before a backward": ("u0 r0 u1 r1 u2 r2 u0 r0 u1 r1 u2 u1 b2 u0 b1 u2 r0 u1 b2 u0 b1 b0", 1, 3),
    "the first block kept to the end of backward": ("u0 r0 u1 r1 u2 r2 u3 u2 b3 u1 b2 u0 b1 u3 u2 b3 u1 b2 b1 b0", 1, 3),
    "prefetch depth 2 in forward": ("u0 u1 u2 r0 u3 r1 u4 r2 r3 u3 b4 u2 b3 u1 b2 u0 b1 b0", 2, 3),
    "unshard() of all blocks": (f"u0 u1 u2 r0 r1 r2 {FORWARD} {BACKWARD}", 1, 3),
    "one block left unsharded": (f"{FORWARD} u1 b2 u0 b1 g0 x0", 1, 3),
}


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("name", BY_HAND)
def test_orders_that_break_a_ring_of_two(name, mode):
    text, ahead, want = BY_HAND[name]
    order = order_of(text, ahead=ahead)
    sizes = [3 + g for g in range(len(order.groups))]
    slots = assign_slots(order, sizes, mode=mode)
    check(order, slots, sizes, mode)
    assert len(slots) == want, slots


def drawn(rng) -> tuple[Order, list[int]]:
    """A random order: up to so many unsharded at once, some left so, reduces with and without a landing, some groups without a plan."""
    count, events, state, reducing = rng.randint(2, 9), [], set(), set()
    most, moments = rng.randint(1, count), [U, R, G, READ]

    def add(moment: Moment, g: int) -> None:
        events.append(Event(moment, g))
        {U: state.add, R: state.discard, G: reducing.add, READ: reducing.discard}[moment](g)

    for _ in range(rng.randint(20, 120)):
        g, moment = rng.randrange(count), rng.choice(moments)
        if (moment is U and g not in state | reducing and len(state) < most) or (moment is R and g in state) or (moment is G and g not in reducing) or (
                moment is READ and g in reducing):
            add(moment, g)
    for g in sorted(reducing):
        add(READ, g)
    for g in range(count):
        if g in state and rng.random() < 0.95:
            add(R, g)
        if all(e != Event(U, g) for e in events):
            add(U, g)
            add(R, g)
    return Order(tuple(Copy(i, 0, f"g{i}") for i in range(count)), tuple(events), rng.randint(0, 3)), [rng.choice((0, 1, 5, 8, 13)) for _ in range(count)]


@pytest.mark.parametrize("mode", Mode)
def test_no_random_order_has_two_living_groups_in_one_landing(draws, mode):
    shared = 0
    for seed in range(300):
        order, sizes = drawn(draws(seed))
        slots = assign_slots(order, sizes, mode=mode)
        check(order, slots, sizes, mode)
        shared += sum(len(s.groups) > 1 for s in slots)
    assert shared > 200


@pytest.mark.parametrize("mode", Mode)
def test_the_claim_finds_every_group_that_may_not_be_where_it_is(draws, mode):
    # A group in another landing: the claim, which shares no code with the colouring or with `check`, says what `check` says.
    verdicts = Counter()
    for seed in range(200):
        rng = draws(seed)
        order, sizes = drawn(rng)
        needs = [Need(landing_bytes=size) for size in sizes]
        arena = lay_model_arena(replace(order, groups=tuple(replace(c, entry=i) for i, c in enumerate(order.groups))), needs, mode=mode)
        assert all(c.verdict is Verdict.PROVED for c in model_claims(arena, needs))
        if len(arena.regions) < 2:
            continue
        a, b = rng.sample(range(len(arena.regions)), 2)
        moved = rng.choice(arena.regions[a].groups)
        groups = {a: tuple(g for g in arena.regions[a].groups if g != moved), b: tuple(sorted((*arena.regions[b].groups, moved)))}
        regions = tuple(replace(r, groups=groups.get(i, r.groups), bytes=max((sizes[g] for g in groups.get(i, r.groups)), default=0)) for i, r in enumerate(arena.regions))
        changed = replace(arena, regions=regions)
        said = [c.verdict is Verdict.PROVED for c in model_claims(changed, needs)]
        try:
            check(order, tuple(Slot(r.groups, r.bytes) for r in changed.regions if r.groups), sizes, mode)
            is_sound = True
        except AssertionError:
            is_sound = False
        assert said[1] and said[2] is is_sound, (seed, order)
        verdicts[is_sound] += 1
    assert min(verdicts[True], verdicts[False]) > 5, verdicts


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, object]]:
    """Order files that FSDP2 itself made of a model of an embedding, three blocks and a head, by what the program does."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    script = Path(__file__).parent / "fsdp2_orders.py"
    made = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert made.returncode == 0, made.stderr[-2000:]
    return json.loads(made.stdout)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("name, want", [
    ("step", 2), ("root", 3), ("eval forwards", 3), ("two forwards before a backward", 3), ("prefetch depth 2", 3), ("unshard() of all blocks", 3),
])
def test_orders_that_fsdp2_makes(recorded, name, want, mode):
    entries = [("root", 1)] * (name == "root") + [(f"block.{i}", 1) for i in range(3)] + [("embed", 1), ("head", 1)] * (name != "root")
    order = read_order(json.dumps(recorded[name]), file=f"{name}.json", signature=model(*entries))
    sizes = [5 + g for g in range(len(order.groups))]
    slots = assign_slots(order, sizes, mode=mode)
    check(order, slots, sizes, mode)
    assert len(slots) == want, slots


def test_the_default_order_is_fsdp2_s_own(recorded):
    signature = model(("embed", 1), *((f"block.{i}", 1) for i in range(3)), ("head", 1))
    assert read_order(json.dumps(recorded["step"]), file="step.json", signature=signature).events == default_order(signature).events
