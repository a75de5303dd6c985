"""What a plan has a rank do is counted from its steps; what a node says it did is held against that, and a node that lies is found out."""
from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tidec.index import symbol
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import Knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.ir import Plan
from tidec.plan.lower import lower
from tidec.run.collective import Reducer
from tidec.run.count import KINDS, Account, Planned, Tally, counted, planned
from tidec.run.report import CollectiveReport, GroupReport, Report
from tidec.schedule.program import OpKind, When


def plan_of(topo: str, collective: Collective) -> Plan:
    topology = parse_topology(topo)
    return lower(Ask(topology, Group("g", 1, (Parameter("p", (2,), Dtype.FP32),)), Lowering.P2P, Knobs(W=topology.lanes, k=1)), collective)


def tally(**kinds: tuple[int, int]) -> Tally:
    """Ops and bytes of the kinds that are named."""
    found = [kinds.get(kind.value, (0, 0)) for kind in KINDS]
    return Tally(tuple(num for num, _ in found), tuple(num_bytes for _, num_bytes in found))


GATHERED = tally(wait=(6, 0), signal=(6, 0), copy=(2, 8))
REDUCED = tally(wait=(3, 0), signal=(3, 0), copy=(1, 4), sum=(1, 8))


def test_two_lanes_do_what_one_can_count_by_hand():
    """A shard of one value goes to both lanes. Of two gradients of two values, one value goes to the other lane, and two are summed."""
    assert planned(plan_of("1x2", Collective.ALL_GATHER), 1, 5) == GATHERED
    assert planned(plan_of("1x2", Collective.REDUCE_SCATTER), 0, 5) == REDUCED
    assert str(REDUCED) == "3 wait, 3 signal, 1 copy 4 B, 1 sum 8 B" and str(Tally()) == "nothing"


def test_a_put_raises_two_counters():
    """Two nodes of one lane: the stage of the other node gets the shard, and both shards are placed."""
    found = planned(plan_of("2x1", Collective.ALL_GATHER), 0, 0)
    at = {kind: i for i, kind in enumerate(KINDS)}
    assert (found.ops[at[OpKind.PUT]], found.bytes[at[OpKind.PUT]], found.ops[at[OpKind.COPY]]) == (1, 4, 2)
    raised = sum(len(s.levels) for s in plan_of("2x1", Collective.ALL_GATHER).steps(0) if s.kind in (OpKind.PUT, OpKind.SIGNAL))
    assert found.ops[at[OpKind.SIGNAL]] == raised


def test_a_program_whose_conditions_name_the_call_is_counted_call_by_call():
    plan = plan_of("1x2", Collective.REDUCE_SCATTER)
    every = Planned(plan, 0)
    assert all(every.of(e) == REDUCED for e in range(3)) and len(every._known) == 1
    first = plan.program.body[0]
    odd = Planned(replace(plan, program=replace(plan.program, body=(When((symbol("e") % 2).eq(0), (first,)), *plan.program.body[1:]))), 0)
    assert odd.of(0) == odd.of(2) == REDUCED and odd.of(1) == odd.of(3) != REDUCED


class Lying:
    """A node that does nothing, and says of every call that it did what it is told to say."""

    def __init__(self, said: Tally):
        self.said = said

    def reduce(self, *_: object) -> None:
        pass

    def counts(self, call: int) -> list[int]:
        return [*self.said.ops, *self.said.bytes]


def reported(said: Tally) -> Report:
    plan, account = plan_of("1x2", Collective.REDUCE_SCATTER), Account()
    reducer = Reducer(plan, Lying(said), rank=0)
    for _ in range(3):
        reducer.reduce({0: 64}, torch.empty(1), 1.0, account)
    return Report((GroupReport("g", (CollectiveReport(Collective.REDUCE_SCATTER, plan.digest, 4, (), account.calls, account.done, account.planned),)),))


@pytest.mark.parametrize("kind", [kind.value for kind in KINDS])
@pytest.mark.parametrize("more", [(1, 0), (0, 1)], ids=["one op more", "one byte more"])
def test_a_count_that_is_wrong_by_one_is_told(kind, more):
    found = reported(REDUCED + tally(**{kind: more}))
    assert not found.is_as_planned and "NOT as planned: 9 wait, 9 signal, 3 copy 12 B, 3 sum 24 B" in str(found)


def test_a_report_says_what_was_done():
    found = reported(REDUCED)
    assert found.is_as_planned
    digest = plan_of("1x2", Collective.REDUCE_SCATTER).digest[:12]
    assert str(found) == f"g: reduce-scatter, plan {digest}, 4 calls, 1 under way (9 wait, 9 signal, 3 copy 12 B, 3 sum 24 B; as planned)"


def test_what_a_node_says_is_read_in_the_order_of_kinds():
    assert counted(list(range(16))) == Tally(tuple(range(8)), tuple(range(8, 16)))
