"""What is live in a step, worked by hand for three layers, and never less than what it consists of."""
import pytest

from tidec.inputs.ask import Mode
from tidec.inputs.order import Copy, Event, Moment, Order, default_order, ends_of_backward
from tidec.inputs.signature import Dtype, Group, Parameter, Signature
from tidec.size.peak import Held, Peak, System, backward_bytes, held_by, peak, system_of

LAYER = Held(1, 10, 9, 20)


def order_of(*entries: tuple[str, int]):
    return default_order(Signature(tuple(Group(name, repeat, (Parameter("w", (4,), Dtype.BF16),)) for name, repeat in entries), "m"))


def test_three_equal_layers_worked_by_hand():
    # At the end of layer 1's backward: its parameters, layer 0's gather buffer, its gradients, and the pack of layer 2.
    order = order_of(("b", 3))
    assert peak(order, [LAYER], System.STOCK) == Peak(shards=3, unsharded=20, gradients=9, packed=20, arena=0)
    # In place the gradients of layer 2 are live too; with slot reuse they lie in a landing.
    assert peak(order, [LAYER], System.IN_PLACE, arena_bytes=100) == Peak(3, 0, 18, 0, 100)
    assert peak(order, [LAYER], System.SLOT_REUSE, arena_bytes=100) == Peak(3, 0, 9, 0, 100)
    assert peak(order, [LAYER], System.STOCK).total == 52


def test_a_pool_of_its_own_holds_its_own_peak():
    # A head of 30 is reduced first: the pool holds its pack, 60, and a buffer of 10; the rest its parameters, 30, and its gradients, 30. Stock at once: at the
    # end of its backward its parameters and gradients and a buffer, 70, and then its gradients, pack and a buffer, 100.
    order, held = order_of(("b", 2), ("head", 1)), [LAYER, Held(3, 30, 30, 60)]
    assert peak(order, held, System.STOCK) == Peak(5, 10, 30, 60, 0)
    assert peak(order, held, System.SYMMETRIC) == Peak(5, 10 + 30, 30, 60, 0)


def test_a_group_without_plans_is_stock_s_under_tidec_too():
    order = order_of(("b", 3))
    stays = Held(1, 10, 9, 20, has_gather=False, has_reduce=False)
    for system in (System.IN_PLACE, System.SLOT_REUSE):
        assert peak(order, [stays], system) == peak(order, [stays], System.STOCK)
        # Gathered by stock, its gradients have no landing to lie in.
        assert peak(order, [Held(1, 10, 9, 20, has_gather=False)], system) == Peak(3, 20, 18, 0, 0)
        assert peak(order, [Held(1, 10, 9, 20, has_reduce=False)], system, arena_bytes=7) == Peak(3, 0, 9, 20, 7)


def test_the_root_is_live_the_whole_step():
    order = order_of(("root", 1), ("b", 3))
    # Its own gradients, 30, are whole when the blocks are through; then its parameters are still there, and the pack of the last block.
    assert peak(order, [Held(1, 100, 30, 0), LAYER], System.STOCK) == Peak(4, 100, 30, 20, 0)
    assert peak(order, [Held(1, 100, 0, 0), LAYER], System.STOCK) == Peak(4, 120, 9, 20, 0)


def test_what_a_group_holds_worked_by_hand():
    # Four ranks; w has two rows a rank of 4 values, b two of one, stored in fp32 and gathered in bf16; c is frozen.
    params = (Parameter("w", (6, 4), Dtype.FP32), Parameter("b", (5,), Dtype.FP32), Parameter("c", (4,), Dtype.FP32, requires_grad=False))
    group = Group("g", 1, params, param_dtype=Dtype.BF16)
    assert held_by(group, ranks=4) == Held((8 + 2 + 1) * 4, 4 * (8 + 2 + 1) * 2, (24 + 5) * 2, 4 * (8 + 2) * 4)
    half = Group("g", 1, group.params[:2], reduce_dtype=Dtype.BF16)
    assert held_by(half, ranks=4) == Held(40, 160, 29 * 4, 4 * 10 * 2, has_reduce=False)


@pytest.mark.parametrize("system, want", [(System.STOCK, 20 + 20), (System.SYMMETRIC, 40), (System.IN_PLACE, 20 + 3 + 5 + 9), (System.SLOT_REUSE, 20 + 3 + 5)])
def test_a_layer_s_backward(system, want):
    assert backward_bytes(system, LAYER, gather_stage_bytes=3, reduce_stage_bytes=5) == want


def test_a_mode_is_a_system():
    assert [system_of(m) for m in Mode] == [System.IN_PLACE, System.SLOT_REUSE]


def drawn(rng) -> tuple[Order, list[Held]]:
    """A random order of whole backwards: any number unsharded at once, each reshard followed by a reduce or not, reads at once."""
    count, events, unsharded, pending = rng.randint(1, 6), [], set(), set()
    for _ in range(rng.randint(10, 60)):
        g = rng.randrange(count)
        if g in pending and rng.random() < 0.6:
            events += [Event(Moment.REDUCE, g), Event(Moment.READ, g)]
            pending.discard(g)
        elif g in unsharded:
            events.append(Event(Moment.RESHARD, g))
            unsharded.discard(g)
            pending.add(g)
        else:
            events.append(Event(Moment.UNSHARD, g))
            unsharded.add(g)
            pending.discard(g)
    return Order(tuple(Copy(i, 0, f"g{i}") for i in range(count)), tuple(events), 1), [Held(*(rng.randint(1, 99) for _ in range(4))) for _ in range(count)]


def most_of_stock(order: Order, held: list[Held]) -> int:
    """From the definition, event by event, whatever came before read off anew."""
    most, ends = 0, ends_of_backward(order)
    for at, event in enumerate(order.events):
        for upto in (at, at + 1):
            past = list(enumerate(order.events[:upto]))
            last = {e.group: e.moment for _, e in past if e.moment in (Moment.UNSHARD, Moment.RESHARD)}
            unsharded = {g for g, moment in last.items() if moment is Moment.UNSHARD}
            reduced = [e.group for _, e in past if e.moment is Moment.REDUCE]
            waiting = {e.group for i, e in past if i in ends and all(later != Event(Moment.REDUCE, e.group) for _, later in past[i:])}
            packed = held[reduced[-1]].pack_bytes if reduced else 0
            if upto == at and (at in ends or event.moment is Moment.REDUCE):
                waiting.add(event.group)
            if upto == at + 1 and event.moment is Moment.REDUCE:
                most = max(most, sum(held[g].landing_bytes for g in unsharded) + sum(held[g].gradient_bytes for g in {*waiting, event.group}) + packed)
            most = max(most, sum(held[g].landing_bytes for g in unsharded) + sum(held[g].gradient_bytes for g in waiting) + packed)
    return most + sum(h.shard_bytes for h in held)


def test_the_peak_of_stock_is_that_of_the_definition_in_random_orders(draws):
    for seed in range(60):
        order, held = drawn(draws(seed))
        stock = peak(order, held, System.STOCK)
        assert stock.total == most_of_stock(order, held), seed
        assert peak(order, held, System.SYMMETRIC).total >= stock.total
        assert peak(order, held, System.IN_PLACE).total >= peak(order, held, System.SLOT_REUSE).total
