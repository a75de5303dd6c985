"""An order is one step of whole lifetimes, or it is refused at its line."""
import json

import pytest

from tidec.errors import TidecError
from tidec.inputs.order import MAX_GROUPS, Copy, Event, Moment, Order, copies, default_order, ends_of_backward, load_order, read_order
from tidec.inputs.signature import Dtype, Group, Parameter, Signature


def model(*entries: tuple[str, int]) -> Signature:
    return Signature(tuple(Group(name, repeat, (Parameter("w", (4,), Dtype.BF16),)) for name, repeat in entries), "m")


MODEL = model(("embed", 1), ("block", 2), ("block 2", 1))
FULL = [("unshard", "embed"), ("unshard", "block", 0), ("unshard", "block", 1), ("unshard", "block 2")]


def written(*events: tuple, **more) -> str:
    spelt = [json.dumps({e[0]: e[1], **({"copy": e[2]} if len(e) > 2 else {})}) for e in events]
    return json.dumps(more)[:-1] + (", " if more else "") + '"events": [\n ' + ",\n ".join(spelt) + "\n]}"


def refusal(text: str, signature: Signature = MODEL) -> str:
    with pytest.raises(TidecError) as caught:
        read_order(text, file="o.json", signature=signature)
    return str(caught.value)


def told(order) -> str:
    return " ".join(f"{e.moment.value[:3] if e.moment is not Moment.READ else 'got'}{e.group}" for e in order.events)


def test_the_default_step_of_three_groups_worked_by_hand():
    # Forward 0 1 2, where 2 is kept; backward 2 1 0, each with the group before it prefetched.
    order = default_order(model(("embed", 1), ("block", 2)))
    assert order.groups == (Copy(0, 0, "embed"), Copy(1, 0, "block[0]"), Copy(1, 1, "block[1]")) and (order.ahead, order.origin) == (1, "")
    assert told(order) == "uns0 res0 uns1 res1 uns2 uns1 res2 red2 got2 uns0 res1 red1 got1 res0 red0 got0"


def test_the_root_is_unsharded_from_first_to_last():
    order = default_order(model(("root", 1), ("block", 2)))
    assert told(order) == "uns0 uns1 res1 uns2 uns1 res2 red2 got2 res1 red1 got1 res0 red0 got0"
    assert told(default_order(model(("w", 1)))) == told(default_order(model(("root", 1)))) == "uns0 res0 red0 got0"


def test_the_reshards_that_end_a_backward():
    moments = (Moment.UNSHARD, Moment.RESHARD, Moment.UNSHARD, Moment.RESHARD, Moment.REDUCE, Moment.READ, Moment.UNSHARD, Moment.REDUCE, Moment.RESHARD, Moment.READ)
    assert ends_of_backward(Order((Copy(0, 0, "w"),), tuple(Event(m, 0) for m in moments), 1)) == {3}


def test_the_default_order_is_one_that_can_be_read_back():
    signature = model(("embed", 1), ("block", 5), ("root", 1))
    order = default_order(signature)
    events = [(e.moment.value, (c := order.groups[e.group]) and signature.groups[c.entry].name, c.number) for e in order.events]
    again = read_order(written(*events, ahead=1), file="o.json", signature=signature)
    assert (again.groups, again.events, again.ahead, again.origin) == (order.groups, order.events, 1, "o.json")


def test_a_recorded_order_is_read(tmp_path):
    text = written(*FULL, ("reshard", "embed"), ("unshard", "embed"), ("reduce", "block", 1), ("reshard", "block", 1), ("read", "block", 1),
                   schema="tidec.order/1", ahead=2, model="m", notes=["by hand"])
    (tmp_path / "o.json").write_text(text)
    order = load_order(tmp_path / "o.json", MODEL)
    assert order.ahead == 2 and order.events[4:] == (
        Event(Moment.RESHARD, 0), Event(Moment.UNSHARD, 0), Event(Moment.REDUCE, 2), Event(Moment.RESHARD, 2), Event(Moment.READ, 2))


REFUSED = [
    (written(*FULL, order=1), 'P003 unknown-key]: an order file has an unknown key "order"'),
    (written(*FULL, schema="tidec.order/2"), 'P002 malformed]: the schema of an order file is "tidec.order/1"'),
    ("{}", "P002 malformed]: an order file has no events"),
    (written(*FULL, ahead=9), "P002 malformed]: ahead is 9, not an integer from 0 to 8"),
    ('{"events": {}}', "P002 malformed]: events is an object, not an array"),
    ('{"events": [3]}', "P002 malformed]: event 0 is 3, not an object"),
    ('{"events": [{"copy": 1}]}', "P002 malformed]: event 0 has no moment"),
    ('{"events": [{"unshard": "embed", "reshard": "embed"}]}', "P002 malformed]: event 0 has unshard and reshard"),
    ('{"events": [{"unshard": "embed", "at": 1}]}', 'P003 unknown-key]: event 0 has an unknown key "at"'),
    ('{"events": [{"unshard": 0}]}', "P002 malformed]: the group of event 0 is 0, not a non-empty string"),
    (written(("unshard", "emebd")), 'P002 malformed]: event 0 names "emebd", which the model has no group of'),
    (written(("unshard", "block")), 'P002 malformed]: event 0 does not say which of the 2 copies of "block" it is about'),
    (written(("unshard", "block", 2)), "P002 malformed]: copy of event 0 is 2, not an integer from 0 to 1"),
    (written(("unshard", "embed", 1)), "P002 malformed]: copy of event 0 is 1, not 0"),
    (written(("unshard", "embed"), ("unshard", "embed")), 'P002 malformed]: group "embed" is unsharded already'),
    (written(("reshard", "block", 1)), 'P002 malformed]: group "block[1]" is not unsharded'),
    (written(("reduce", "embed"), ("reduce", "embed")), 'P002 malformed]: group "embed" is being reduced already'),
    (written(("read", "embed")), 'P002 malformed]: group "embed" is not being reduced'),
    (written(*FULL, ("reduce", "embed")), 'P002 malformed]: the reduce of group "embed" has no read'),
    (written(*FULL[:3]), 'P002 malformed]: group "block 2" is never unsharded'),
]


@pytest.mark.parametrize("text, want", REFUSED)
def test_a_wrong_order_is_refused_for_its_reason(text, want):
    assert want in refusal(text)


def test_refusals_point_at_their_line(golden):
    golden("inputs/order-refused.txt", "\n\n".join(refusal(text) for text, _ in REFUSED) + "\n")


def test_a_name_of_two_groups_is_refused():
    assert 'P002 malformed]: event 0 names "b", and 2 groups are called so' in refusal(written(("unshard", "b")), model(("b", 1), ("b", 1)))


def test_more_groups_than_an_arena_names_are_refused():
    assert len(copies(model(("b", MAX_GROUPS)))) == MAX_GROUPS
    with pytest.raises(TidecError, match=r"P002 malformed\]: \"m\" has 16,385 groups"):
        default_order(model(("b", MAX_GROUPS), ("c", 1)))
