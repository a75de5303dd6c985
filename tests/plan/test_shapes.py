"""Programs that the language accepts and no plan carries out are refused, each with its line and reason."""
from dataclasses import replace

import pytest

from tidec.errors import TidecError
from tidec.inputs.ask import Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.plan.ir import Plan
from tidec.plan.layout import lay_out
from tidec.plan.shapes import check_program
from tidec.schedule import catalog
from tidec.schedule.idioms import ALL, NODE, OTHERS, RAIL, Block, wrap
from tidec.schedule.branch import branch
from tidec.schedule.program import OpKind, Program
from tidec.schedule.tracer import trace


def program(body, lanes: int = 2) -> Program:
    """A program of a schedule that is written here: `body(s, shard, stage, land)`."""

    def made(s):
        M = s.nodes
        shard = s.input("shard", Block.SHARD, one=1)
        stage, land = s.buffer("stage", Block.SHARD, slot=2 * M), s.output("land", Block.PLACED, bank=2, node=M, lane=s.lanes)
        with s.stream("main"):
            body(s, shard, stage, land)

    return branch(trace(made, "made", lanes, __file__, "made.py"), 2)


def refusal(body, lanes: int = 2) -> str:
    with pytest.raises(TidecError) as caught:
        check_program(program(body, lanes))
    return str(caught.value).replace(__file__, "made.py")


def run_of(src, dst):
    def body(s, shard, stage, land):
        for k in s.run("k", 0, s.nodes):
            s.copy(src(s, shard, stage, k), dst(s, land, k))
        s.join()

    return body


def test_a_run_that_advances_evenly_is_accepted():
    check_program(program(run_of(lambda s, shard, stage, k: stage[k * 2], lambda s, land, k: land[0, k, 0])))


@pytest.mark.parametrize("body, words", [
    (run_of(lambda s, shard, stage, k: stage[wrap(s.here[0] + k, s.nodes)], lambda s, land, k: land[0, k, 0]), "is not linear in k"),
    (run_of(lambda s, shard, stage, k: stage[k // 2], lambda s, land, k: land[0, k, 0]), "is not linear in k"),
    (run_of(lambda s, shard, stage, k: stage[s.nodes - k], lambda s, land, k: land[0, k, 0]), "stage by one growing index"),
    (run_of(lambda s, shard, stage, k: shard[0], lambda s, land, k: land[0, k, 0]), "shard by one growing index"),
    (run_of(lambda s, shard, stage, k: stage[k], lambda s, land, k: land[0, k, k]), "land by one growing index"),
    (run_of(lambda s, shard, stage, k: stage[k], lambda s, land, k: land[0, 0, 0].at(s.here[0], k)), "does not stay on one rank"),
])
def test_a_run_that_does_not_is_refused(body, words):
    message = refusal(body)
    assert "error[V402" in message and words in message and "made.py:" in message


def test_a_run_holds_one_copy():
    def body(s, shard, stage, land):
        for k in s.run("k", 0, s.nodes):
            s.zero(stage[k])
        s.join()

    assert "holds something else than one copy" in refusal(body)


def test_a_run_never_reads_gradients():
    def made(s):
        grad, stage = s.input("grad", Block.GRAD_SLICE, part=1, node=s.nodes, sub=2), s.buffer("stage", Block.SLICE, slot=s.nodes)
        with s.stream("main"):
            for k in s.run("k", 0, s.nodes):
                s.copy(grad[0, k, 0], stage[k])
            s.join()

    with pytest.raises(TidecError, match="rows are strided already"):
        check_program(branch(trace(made, "made", 2, __file__, "made.py"), 2))


@pytest.mark.parametrize("body, words", [
    (lambda s, shard, stage, land: s.copy(land[0, 0, 0], stage[0]), "between land (placed) and stage (shard)"),
    (lambda s, shard, stage, land: s.copy(stage[0], land[0, 0, ALL]), "between stage (shard) and land (placed)"),
    (lambda s, shard, stage, land: s.zero(land[0, 0, 0]), "land (placed)"),
    (lambda s, shard, stage, land: s.land(stage[ALL].at(s.here[0], ALL), into=land[0, ALL, ALL]), "stage (shard) and land (placed)"),
    (lambda s, shard, stage, land: s.cast(shard[0], stage[0]), "only under the argument cast"),
    (lambda s, shard, stage, land: s.read(land[ALL, 0, ALL]), "no layout has this move"),
    (lambda s, shard, stage, land: s.sum(stage[OTHERS], shard[0], into=stage[1]), "no layout has this move"),
])
def test_moves_between_blocks_that_no_layout_pairs_are_refused(body, words):
    message = refusal(body)
    assert "error[V105" in message and words in message and "made.py:" in message


def test_a_counted_key_that_doubles_is_refused():
    def body(s, shard, stage, land):
        s.signal(s.flag("f", RAIL, h=("x2", s.nodes))[1].at(0, s.here[1]))

    assert "write it under on=" in refusal(body)


@pytest.mark.parametrize("declare, words", [
    (lambda s: s.buffer("b", Block.GRAD_SLICE, part=1, node=s.nodes, sub=2), "3 dimensions of grad_slice blocks, as temporary"),
    (lambda s: s.input("b", Block.PARTIAL, one=1), "1 dimensions of partial blocks, as input"),
    (lambda s: s.output("b", Block.PLACED, bank=2), "1 dimensions of placed blocks, as output"),
    (lambda s: s.buffer("b", Block.SHARD, h=("x2", s.nodes)), "does not advance by one"),
])
def test_buffers_that_no_layout_has_are_refused(declare, words):
    def body(s, shard, stage, land):
        b = declare(s)
        s.free(b[(ALL,) * len(b.buffer.dims)])

    assert words in refusal(body).replace("as temp", "as temporary")


def test_ops_with_missing_parts_are_refused():
    good = program(lambda s, shard, stage, land: s.copy(shard[0], land[0, 0, 0]))
    (op,) = good.body
    for bad, words in (
        (replace(op, reads=()), "reads, writes, raises or awaits"), (replace(op, kind=OpKind.SIGNAL), "reads, writes, raises or awaits"),
        (replace(op, stream="other"), 'no stream "other"'), (replace(op, reads=(replace(op.reads[0], buffer="none"),)), "no block of none"),
        (replace(op, reads=(replace(op.reads[0], key=()),)), "no block of shard"),
    ):
        with pytest.raises(TidecError) as caught:
            check_program(replace(good, body=(bad,)))
        assert words in str(caught.value)
    signal = program(lambda s, shard, stage, land: s.signal(s.flag("f", NODE).at(s.here[0], 0)))
    with pytest.raises(TidecError, match="no promise of f"):
        check_program(replace(signal, flags=()))
    with pytest.raises(TidecError, match="are called f"):
        check_program(replace(signal, flags=signal.flags * 2))


@pytest.mark.parametrize("name", catalog.names())
@pytest.mark.parametrize("nodes", [1, 2])
def test_every_shipped_schedule_has_plans(name, nodes):
    knobs = dict(W=4, k=2) if name == "tide_rs" else {}
    check_program(branch(catalog.traced(name, 4, **knobs), nodes))


def test_a_block_outside_its_buffer_is_refused_with_its_line():
    p = program(lambda s, shard, stage, land: s.copy(stage[s.nodes * 2], land[0, 0, 0]))
    layout = lay_out(Group("g", 1, (Parameter("a", (8,), Dtype.BF16),)), 4)
    plan = Plan(Collective.ALL_GATHER, 2, Lowering.P2P, p, layout, (Dtype.BF16,), (Dtype.BF16,))
    with pytest.raises(TidecError) as caught:
        list(plan.steps(0))
    assert "error[V102" in str(caught.value) and "index 4 of stage is outside 0..3" in str(caught.value) and "made.py:" in str(caught.value)
    p = program(lambda s, shard, stage, land: s.copy(stage[0], land[0, 0, 0].at(s.nodes, 0)))
    with pytest.raises(TidecError, match="rank 2.0, which does not exist"):
        list(Plan(Collective.ALL_GATHER, 2, Lowering.P2P, p, layout, (Dtype.BF16,), (Dtype.BF16,)).steps(0))
    p = program(lambda s, shard, stage, land: s.signal(s.flag("f", NODE, q=(0, 2))[2].at(s.here[0], 0)))
    with pytest.raises(TidecError, match="key 2 of flag f is outside 0..1"):
        list(Plan(Collective.ALL_GATHER, 2, Lowering.P2P, p, layout, (Dtype.BF16,), (Dtype.BF16,)).steps(0))
