"""The text of the steps, which the compiled echo must print byte for byte."""
import re

import pytest

from tidec.errors import TidecError
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan import listing
from tidec.plan.lower import lower

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER


def planned(topo, collective, *, shapes=((5, 4), (3,)), lowering=Lowering.P2P, knobs=(), stored=Dtype.BF16, gathered=None):
    topology = parse_topology(topo)
    group = Group("g", 1, tuple(Parameter(f"p{i}", s, stored) for i, s in enumerate(shapes)), param_dtype=gathered)
    return lower(Ask(topology, group, lowering, parse_knobs(knobs, topology.lanes, nodes=topology.nodes)), collective)


def test_an_all_gather_of_two_nodes_worked_by_hand():
    # Two ranks. p0 is 5x4: R = 3, s = 24 bytes; p1 is 3: R = 2, s = 4. S = 28, the landing 56: p0 at 0 and 24, p1 at 48 and 52.
    # Arena: two landings 0..112, the shard at 512, one slot of stage at 1024. The second call uses the landing at 56.
    assert list(listing.lines(planned("2x1", GATHER), 1, 1)) == """\
entry wait released by 1.0 >= 1
entry signal room for 1.0 = 2
rail wait scattered by 1.0 >= 1
rail wait sent[1] by 1.0 >= 1
rail signal credit[1] for 0.0 = 2
rail wait credit[1] by 0.0 >= 2
rail put shard@1.0+0 -> arena@0.0+1024 28x1 then have[1] for 0.0 = 2 done sent[1] = 2
rail wait have[1] by 0.0 >= 2
scatter wait room by 1.0 >= 2
scatter copy shard@1.0+0 -> arena@1.0+80 24x1
scatter copy shard@1.0+24 -> arena@1.0+108 4x1
scatter join
scatter wait have[1] by 0.0 >= 2
scatter copy arena@1.0+1024 -> arena@1.0+56 24x1
scatter copy arena@1.0+1048 -> arena@1.0+104 4x1
scatter join
scatter signal scattered for 1.0 = 2
scatter signal done for 1.0 = 2
update wait scattered by 1.0 >= 2
update wait sent[1] by 1.0 >= 2
update free shard@1.0+0 28x1
compute wait done by 1.0 >= 1
compute read arena@1.0+0 56x1
compute signal released for 1.0 = 2""".splitlines()


def test_a_reduce_scatter_of_one_node_worked_by_hand():
    # Two lanes. p0 is 5x4: R = 3, 12 elements a rank; p1 is 3: R = 2. E = 14, E_sub = 8, a row block 16 values of 2 bytes.
    # Lane 0 owns rows 0..2 of p0 and 0..1 of p1, all real; lane 1 rows 3..4 of p0 (elements 12..19) and row 2 of p1.
    assert list(listing.lines(planned("1x2", REDUCE), 1)) == """\
push wait freed by 0.0 >= 0
push copy grad0@0.1+0 -> arena@0.0+32 24x1
push copy grad1@0.1+0 -> arena@0.0+56 4x1
push join
push signal staged for 0.0 = 1
sum wait staged by 0.0 >= 1
sum sum out@0.1+0 seed=1
sum sum + arena@0.1+0 -> out@0.1+0 16x1
sum sum + arena@0.1+24 -> out@0.1+48 2x1
sum sum + grad0@0.1+24 -> out@0.1+0 16x1
sum sum + grad1@0.1+4 -> out@0.1+48 2x1
sum signal freed for 0.0 = 1
push signal pushed for 0.1 = 1
sum wait pushed by 0.1 >= 1
sum free grad0@0.1+0 40x1
sum free grad1@0.1+0 6x1""".splitlines()


@pytest.mark.parametrize("topo", ["1x2", "2x1", "2x2", "3x2"])
@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize("lowering", Lowering)
def test_tiny_plans(topo, collective, lowering, golden):
    plan = planned(topo, collective, lowering=lowering)
    text = "".join(f"# rank {r // plan.lanes}.{r % plan.lanes}, call {e}\n" + "".join(x + "\n" for x in listing.lines(plan, r, e)) for r, e in ((0, 0), (plan.ranks - 1, 1)))
    golden(f"plan/listing-{topo}-{collective.value}-{lowering.value}.txt", text)


@pytest.mark.parametrize("collective, name, options", [
    (GATHER, "cast", dict(stored=Dtype.FP32, gathered=Dtype.BF16)), (REDUCE, "parts", dict(shapes=((30, 3), (5, 4)), knobs=("n_part=2", "n_out=3", "W=1", "n_stg=1"))),
])
def test_tiny_plans_of_other_knobs(collective, name, options, golden):
    golden(f"plan/listing-3x2-{collective.value}-{name}.txt", "".join(x + "\n" for x in listing.lines(planned("3x2", collective, **options), 3)))


RANK, BYTES = r"\d+\.\d+", r"\d+"
PLACE = rf"(arena|shard|grad\d+|out)@\d+\.(\d+|\*)\+{BYTES}"
COUNTER = r"[a-z]+(\[\d+(,\d+)*\])?"
MOVE = rf"({PLACE} -> {PLACE} {BYTES}x1|{PLACE}/{BYTES} -> {PLACE}/{BYTES} {BYTES}x([2-9]|\d\d+))"
TYPE = "(bf16|fp16|fp32)"
GRAMMAR = re.compile("[a-z]+ (" + "|".join([
    rf"wait {COUNTER} by {RANK} >= -?\d+", rf"signal {COUNTER} for {RANK} = \d+", rf"copy {MOVE}",
    rf"put {PLACE} -> {PLACE} {BYTES}x1 then {COUNTER} for {RANK} = \d+ done {COUNTER} = \d+", rf"zero {PLACE} {BYTES}x1",
    rf"cast {PLACE} -> {PLACE} {BYTES} {TYPE}>{TYPE}", rf"sum {PLACE} seed=[01]", rf"sum \+ {MOVE}", rf"land {PLACE} seed=[01]",
    rf"land [+*] {PLACE} -> {PLACE} {BYTES}", "join", rf"(read|free) {PLACE} {BYTES}x1",
]) + ")")


def test_the_examples_of_the_docstring_are_of_the_grammar():
    examples = [x.strip() for x in listing.__doc__.splitlines() if re.match(r"    (entry|rail|scatter|read|net|compute) ", x)]
    assert len(examples) >= 16 and all(GRAMMAR.fullmatch(x) for x in examples)


@pytest.mark.parametrize("lowering", Lowering)
@pytest.mark.parametrize("topo", ["1x1", "1x3", "5x1", "5x3"])
def test_every_line_is_of_the_grammar(topo, lowering):
    shapes = ((5, 4), (3,), (40, 3), (0, 2), (61,))
    for plan in (planned(topo, GATHER, shapes=shapes, lowering=lowering), planned(topo, REDUCE, shapes=shapes, lowering=lowering, knobs=("n_part=2",)),
                 planned(topo, GATHER, shapes=shapes, lowering=lowering, stored=Dtype.FP16, gathered=Dtype.FP32)):
        for rank in range(plan.ranks):
            for line in listing.lines(plan, rank, 2):
                assert GRAMMAR.fullmatch(line), line


def test_a_rank_that_does_not_exist_is_refused():
    plan = planned("2x2", GATHER)
    for rank, call in ((4, 0), (-1, 0), (0, -1)):
        with pytest.raises(TidecError, match="P102") as caught:
            list(listing.lines(plan, rank, call))
        assert "ranks are numbered n*L + j" in str(caught.value)
