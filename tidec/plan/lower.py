"""From what is asked to a plan: which schedule, with which arguments, on which layout."""
from __future__ import annotations

from functools import lru_cache

from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import FULL, least_outbox, num_chunks, too_small_outbox
from tidec.inputs.signature import LANDINGS
from tidec.plan.ir import Plan
from tidec.plan.layout import check_layout, lay_out
from tidec.schedule.catalog import traced
from tidec.schedule.branch import branch
from tidec.schedule.program import Program


def lower(ask: Ask, collective: Collective) -> Plan:
    """The plan of one collective of the asked group.

    The group must be one that this collective plans (`stock_cause` gives nothing).
    Guaranteed: rows tile the landing and the packed output, regions are disjoint.
    Raises P005, P006, V402. Whether the premises on M hold is `Plan.premises_hold`; the prover refutes them with an example.
    """
    knobs, topology = ask.knobs, ask.topology
    if isinstance(knobs.n_out, int) and knobs.n_out < least_outbox(knobs, topology.nodes):
        raise too_small_outbox(knobs, topology.nodes)
    layout = lay_out(ask.group, topology.ranks)
    program = _program(*schedule_call(ask, collective), topology.lanes, topology.nodes == 1)
    plan = Plan(
        collective, topology.nodes, ask.lowering, program, layout, tuple(p.dtype for p in ask.group.params),
        tuple(ask.group.gathered_as(p) for p in ask.group.params), (ask.group.name,),
    )
    check_layout(layout, plan.slices if collective is Collective.REDUCE_SCATTER else None)
    return plan


def schedule_call(ask: Ask, collective: Collective) -> tuple[str, tuple[tuple[str, object], ...]]:
    """(name, arguments) of the schedule that carries out a collective. Raises P006 where chunk_bytes makes too many chunks, P005."""
    knobs, topology, multicast = ask.knobs, ask.topology, ask.lowering is Lowering.NVLS
    if collective is Collective.ALL_GATHER:
        # The default is not said, as the names of classes do not say it.
        own = (("landings", ask.group.landings),) if ask.group.landings != LANDINGS else ()
        return "tide_ag", (("cast", bool(knobs.cast)), *own, ("multicast", multicast))
    n_out = "full" if knobs.n_out is FULL else knobs.n_out
    sizes = dict(row_elems=0, row_item_bytes=1)
    if knobs.chunk_bytes:
        layout = lay_out(ask.group, topology.ranks)
        item_bytes = max(p.item_bytes for p in layout.params if p.is_trainable)
        sizes = dict(row_elems=layout.sub_slices(knobs.n_part, topology.lanes).capacity_elems, row_item_bytes=topology.lanes * item_bytes)
    chunks = num_chunks(knobs, **sizes)
    # A round sends min(k, W, M-1) blocks. Where an outbox suffices only because there are so few nodes, that number is said, so that the class is proved for
    # every M.
    is_small = isinstance(knobs.n_out, int) and knobs.n_out < least_outbox(knobs, None)
    k = max(1, least_outbox(knobs, topology.nodes)) if is_small else knobs.k
    return "tide_rs", (
        ("W", knobs.W), ("chunks", chunks), ("k", k), ("multicast", multicast), ("n_out", n_out), ("n_part", knobs.n_part), ("n_stg", knobs.n_stg),
        ("stripes", knobs.stripes),
    )


@lru_cache(maxsize=64)
def _program(name: str, arguments: tuple[tuple[str, object], ...], lanes: int, is_single_node: bool) -> Program:
    """The branch of the traced program; one object for all groups, so that what is derived from it is derived once."""
    return branch(traced(name, lanes, **dict(arguments)), 1 if is_single_node else 2)
