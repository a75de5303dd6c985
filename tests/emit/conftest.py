"""Plans as emission takes them. Their certificates say nothing: what is proved is the business of tests/verify."""
from collections.abc import Callable

import pytest

from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.lower import lower
from tidec.verify.certificate import Proved


@pytest.fixture
def asked() -> Callable[..., Ask]:
    """`asked("3x2", shapes=..., name=..., knobs=..., lowering=..., gathered=...)`: bf16 parameters, or fp32 ones gathered in another type."""

    def ask(topo: str, *, shapes=((7, 3), (33,)), name: str = "g", repeat: int = 1, knobs=(), lowering: Lowering = Lowering.P2P, gathered: Dtype | None = None) -> Ask:
        topology = parse_topology(topo)
        dtype = Dtype.FP32 if gathered else Dtype.BF16
        group = Group(name, repeat, tuple(Parameter(f"p{i}", shape, dtype) for i, shape in enumerate(shapes)), param_dtype=gathered)
        return Ask(topology, group, lowering, parse_knobs(knobs, topology.lanes, nodes=topology.nodes))

    return ask


@pytest.fixture
def proved(asked: Callable[..., Ask]) -> Callable[..., Proved]:
    """`proved("3x2", Collective.ALL_GATHER, ...)`, the rest as in `asked`."""

    def make(topo: str, collective: Collective, **rest: object) -> Proved:
        return Proved(lower(asked(topo, **rest), collective), '{"schema":"tidec.certificate/1"}')

    return make
