"""The edge of a wait says which counter and which value: unrolled on its own, it gives what the steps wait for."""
import pytest

from tidec.index import evaluate
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.edges import Keeper, wait_edges
from tidec.plan.lower import lower
from tidec.schedule.program import Event, Loop, Op, OpKind, Step, When

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER


def planned(topo, collective, *knobs):
    topology = parse_topology(topo)
    group = Group("g", 1, (Parameter("a", (5, 4), Dtype.BF16),))
    return lower(Ask(topology, group, Lowering.P2P, parse_knobs(knobs, topology.lanes, nodes=topology.nodes)), collective)


def points(items, env):
    """Every (op, values of all indices) in position order."""
    for item in items:
        if isinstance(item, Op):
            yield item, env
        elif isinstance(item, When):
            if evaluate(item.cond, env):
                yield from points(item.body, env)
        else:
            assert isinstance(item, Loop)
            index, high = evaluate(item.lo, env), evaluate(item.hi, env)
            while index < high:
                yield from points(item.body, {**env, item.name: index})
                index = index * 2 if item.step is Step.DOUBLING else index + 1


def awaited(edge, env):
    """(flag, on, raiser, value) of one wait, as the edge's docstring says."""
    call, size, index = evaluate(edge.call, env), 1, 0
    for key in edge.box:
        low, high = evaluate(key.low, env), evaluate(key.high, env)
        size, index = size * (high - low), index * (high - low) + evaluate(key.key, env) - low
    on = tuple(evaluate(k, env) for k in edge.on)
    return edge.flag, on, (evaluate(edge.node, env), evaluate(edge.lane, env)), call * size + index + 1


@pytest.mark.parametrize("topo", ["1x3", "3x2", "6x1", "5x3"])
@pytest.mark.parametrize("collective", Collective)
@pytest.mark.parametrize("knobs", [(), ("n_part=2", "n_out=3", "W=1", "k=1")])
def test_edges_and_steps_wait_for_the_same(topo, collective, knobs):
    plan = planned(topo, collective, *knobs)
    edges = {e.op: e for e in wait_edges(plan.program)}
    for rank in range(plan.ranks):
        n, j = divmod(rank, plan.lanes)
        for call in (0, 3):
            own = [awaited(edges[op.id], env) for op, env in points(plan.program.body, dict(M=plan.nodes, n=n, j=j, e=call)) if op.kind is OpKind.WAIT]
            steps = [s.levels[0] for s in plan.steps(rank, call) if s.kind is OpKind.WAIT]
            assert own == [(x.flag, x.key, x.raiser, x.value) for x in steps] and all(x.owner == (n, j) for x in steps)


def test_the_keepers_of_a_promise_are_all_that_raise_it():
    plan = planned("3x2", GATHER)
    puts = sorted({s.op.id for s in plan.steps(0) if s.kind is OpKind.PUT})
    edges = {e.flag: e for e in wait_edges(plan.program)}
    # At three nodes every round sends the first slot only, so that the put of later slots issues nothing; it is a keeper all the same.
    assert len(puts) == 1 and edges["have"].kept_by == (Keeper(puts[0], Event.THEN), Keeper(puts[0] + 1, Event.THEN))
    assert edges["sent"].kept_by == (Keeper(puts[0], Event.DONE), Keeper(puts[0] + 1, Event.DONE))
    (signal,) = {s.op.id for s in plan.steps(0) if s.kind is OpKind.SIGNAL and s.levels[0].flag == "done"}
    assert edges["done"].kept_by == (Keeper(signal, Event.END),)
    assert edges["sent"].box == () and len(edges["sent"].on) == 1 and len(edges["have"].box) == 1


def test_the_box_of_a_wait_may_depend_on_its_keys():
    plan = planned("5x1", GATHER)
    # 5 nodes: rounds of 1, 2 and 1 slots; round h = 4 counts one promise a call, h = 2 counts two.
    levels = {(x.flag, x.key): x.value for s in plan.steps(0, 2) for x in s.levels if s.kind is OpKind.WAIT and x.flag == "have"}
    assert levels == {("have", (1,)): 3, ("have", (2,)): 6, ("have", (4,)): 3}
