"""A step: the walks of two programs, their phases, and what a moved input becomes."""
import pytest

from tidec.errors import TidecError
from tidec.schedule.branch import specialise
from tidec.schedule.catalog import STEP_FILE, step_path, traced, traced_step
from tidec.schedule.program import OpKind, Program, statements
from tidec.schedule.step import Part, prefixed


def step(*, source: str = "", single_node: bool = False, slot_reuse: bool = True, ahead: bool = True, n_out: int | str = "full", is_played: bool = False) -> Program:
    parts = traced("tide_ag", 2), traced("tide_rs", 2, W=2, k=1, n_out=n_out)
    return traced_step(*parts, single_node=single_node, slot_reuse=slot_reuse, ahead=ahead, source=source, is_played=is_played)


def order_of(program: Program) -> str:
    """One letter an op: g of the all-gather, r and n of the reduce-scatter's reading and network streams, s of the step itself."""
    letters = {"ag": "g", "rs_push": "r", "rs_sum": "r", "rs_net": "n"}
    return "".join("s" if x.op.spot.file == STEP_FILE else letters.get(x.op.stream, letters.get(x.op.stream[:2])) for x in statements(program))


def squeezed(text: str) -> str:
    return "".join(a for a, b in zip(text, text[1:] + " ") if a != b)


def test_the_all_gather_stands_between_the_phases_or_behind_them():
    assert squeezed(order_of(step())) == "srsgn"
    assert squeezed(order_of(step(ahead=False))) == "srnsg"
    assert squeezed(order_of(step(n_out=1))) == "srsgnrnr"          # sums go on in the network phase
    assert squeezed(order_of(step(slot_reuse=False))) == "srgn"     # no gate
    assert squeezed(order_of(step(single_node=True))) == "srsg"


def test_each_part_keeps_its_ops_and_their_order():
    whole = step()
    for name, prefix, knobs in (("tide_ag", "ag_", {}), ("tide_rs", "rs_", dict(W=2, k=1))):
        alone = [(x.op.kind, x.op.spot, [l.name for l in x.loops]) for x in statements(specialise(traced(name, 2, **knobs), False)) if x.op.kind is not OpKind.FREE]
        there = [(x.op.kind, x.op.spot, [l.name for l in x.loops]) for x in statements(whole) if x.op.stream.startswith(prefix)
                 and x.op.spot.file != STEP_FILE and not (prefix == "rs_" and x.op.raises and x.op.raises[0].promise.flag == "consumed") and x.op.kind is not OpKind.FREE]
        assert there == alone
    assert [x.op.id for x in statements(whole)] == list(range(len(list(statements(whole)))))


def test_gradients_that_lie_in_the_landing_are_read_there_and_freed_by_a_flag():
    reused, in_place = step(), step(slot_reuse=False)
    reads = [(x.op.stream, c.use) for x in statements(reused) if x.op.stream.startswith("rs_") for c in x.op.reads if c.buffer == "ag_land"]
    assert set(reads) == {("rs_push", (0,)), ("rs_sum", (0,))}
    assert "rs_grad" not in {b.name for b in reused.buffers} and "rs_grad" in {b.name for b in in_place.buffers}
    assert not [x for x in statements(reused) if x.op.kind is OpKind.FREE and x.op.writes[0].buffer == "ag_land"]
    (told,) = [x.op for x in statements(reused) for r in x.op.raises if r.promise.flag == "consumed"]
    assert (told.kind, told.stream, "s.free(grad" in told.spot.text) == (OpKind.SIGNAL, "rs_sum", True)


def test_a_step_that_is_played_reads_both_the_gradients_and_where_they_lie():
    ops = [x.op for x in statements(step(is_played=True)) if any(c.buffer == "ag_land" for c in x.op.reads) and x.op.stream in ("rs_push", "rs_sum")]
    assert ops and {tuple(c.buffer for c in op.reads) for op in ops} == {("rs_grad", "ag_land"), ("rs_stage", "rs_grad", "ag_land")}


def test_all_streams_that_read_gradients_wait_for_them():
    waits = [x.op.stream for x in statements(step()) if x.op.spot.file == STEP_FILE and x.op.waits and x.op.waits[0].flag == "filled"]
    assert waits == ["rs_push", "rs_sum"]
    assert Part(specialise(traced("tide_rs", 1, W=1, k=1), False), "").readers == ("sum",)      # with one lane nothing is pushed
    assert Part(specialise(traced("tide_rs", 2, W=2, k=1, n_out=1), False), "").readers == ("push", "sum")


def test_a_part_without_a_network_phase_is_read_whole():
    alone = Part(prefixed(specialise(traced("tide_rs", 2, W=2, k=1), True), "rs_"), "rs_")
    assert alone.network == () and alone.reads == alone.program.body


@pytest.mark.parametrize(("old", "new", "says"), [
    ("s.issue(s.reduce.reads, freed=consumed)", "s.issue(s.reduce.reads)", "rs_grad is freed, and no flag says so"),
    ('s.gather.buffer("land"', 's.gather.buffer("sea"', "ag has no buffer sea"),
    ('("grad", "rows")', '("gard",)', "rs has no input gard"),
    ("filled, consumed = ", "filled, = ", "too many values to unpack"),
])
def test_a_mistake_in_a_step_says_where(old, new, says):
    text = step_path().read_text(encoding="utf-8")
    assert text.count(old) == 1
    with pytest.raises(TidecError) as stop:
        step(source=text.replace(old, new))
    (found,) = stop.value.diagnostics
    assert (found.code, found.spots[0].file) == ("P007", STEP_FILE) and says in found.sentence


def test_parts_are_for_one_lane_count():
    with pytest.raises(TidecError, match="the parts are for 2 and for 4 lanes"):
        traced_step(traced("tide_ag", 2), traced("tide_rs", 4, W=2, k=1), single_node=True, slot_reuse=True, ahead=True)
