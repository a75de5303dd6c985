"""A group's landing is lent to its parameters, all of them, also where that was interrupted and is begun again."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import Knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.lower import lower
from tidec.run.arena import Landing
from tidec.run.held import Held


class Interrupted:
    """A parameter of FSDP2's, at which Ctrl-C comes once."""

    def __init__(self, output: torch.Tensor):
        self._output, self.times = output, 0

    @property
    def all_gather_outputs(self) -> list[torch.Tensor]:
        self.times += 1
        if self.times == 1:
            raise KeyboardInterrupt
        return [self._output]


def test_lending_that_was_interrupted_is_begun_again():
    params = (Parameter("a", (4, 3), Dtype.BF16), Parameter("b", (2,), Dtype.BF16))
    plan = lower(Ask(parse_topology("1x2"), Group("g", 1, params), Lowering.P2P, Knobs(W=2, k=1)), Collective.ALL_GATHER)
    arena = torch.arange(plan.arena.bytes // 2, dtype=torch.int16).view(torch.bfloat16)
    outputs = [torch.empty(12, dtype=torch.bfloat16), torch.empty(2, dtype=torch.bfloat16)]
    for output in outputs:
        output.untyped_storage().resize_(0)
    landing = Landing(plan, arena.data_ptr())
    held = Held.__new__(Held)
    held.ring, held.call, held.lent = SimpleNamespace(plan=plan, acquire=lambda call: landing), 0, set()
    held.board, held.is_broken = SimpleNamespace(check=lambda number: None), False
    group = SimpleNamespace(fsdp_params=[SimpleNamespace(all_gather_outputs=[outputs[0]]), Interrupted(outputs[1])], device=torch.device("cpu"))
    held.group_of = lambda: group
    with pytest.raises(KeyboardInterrupt):
        held.land(1)
    held.lent.clear()
    held.land(1)
    assert held.lent == {0, 1}
    assert [o.data_ptr() - arena.data_ptr() for o in outputs] == [plan.layout.landing_offset(i, 0) for i in range(2)]
