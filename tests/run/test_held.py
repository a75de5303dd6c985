"""A group's landing is lent to its parameters, also where that was interrupted; calls that go stock are told once, or refused before anything of them is done."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_param import ShardedState

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.ask import Ask, Collective, Mode
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import Knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.lower import lower
from tidec.run import versions
from tidec.run.arena import Landing
from tidec.run.fallback import because
from tidec.run.held import Freed, Held, Result
from tidec.run.hooks import Hooks
from tidec.run.reduce import Bound


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


# ---- calls that go stock

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER


class Board:
    """What was written, and which lines were held against the others'."""

    def __init__(self):
        self.lines, self.checked = [], []

    def write(self, line: str) -> int:
        self.lines.append(line)
        return len(self.lines) - 1

    def check(self, number: int) -> None:
        self.checked.append(number)


def of_four_ranks(**options) -> tuple[Held, list[str]]:
    """A group of a 4 x 4 weight whose ring and reducer may not be asked for anything, and the lines that it tells."""
    group = Group("g", 1, (Parameter("w", (4, 4), Dtype.FP32),))
    ask = Ask(parse_topology("1x4"), group, Lowering.P2P, Knobs(W=2, k=1))
    ring, reducer = (SimpleNamespace(plan=lower(ask, c), is_full=False) for c in Collective)
    processes = SimpleNamespace(size=lambda: 4)
    p = SimpleNamespace(sharded_state=ShardedState.SHARDED, _sharded_param_data=torch.zeros(4), param_dtype=None, orig_dtype=torch.float32)
    live = SimpleNamespace(fsdp_params=[p], _all_gather_process_group=processes, _all_gather_result=None, is_sharded=True)
    told: list[str] = []
    held = Held("g", lambda: live, Board(), Mode.IN_PLACE, ring, reducer, **{"without": (None, None), "kept": None, "open": None, "tell": told.append, **options})
    p.free_unsharded_param = Freed(held, 0, None)
    return held, told


def gathered(held: Held, comm: object = DefaultAllGather()) -> object:
    return held.gather(lambda: "stock", held.group._all_gather_process_group, comm, packing=None, moving=None)


def reduced(held: Held, grads: list[torch.Tensor], **bound: object) -> object:
    given = {"group": held.group._all_gather_process_group, "stream": None, "comm": DefaultReduceScatter(), "orig_dtype": None, "reduce_dtype": torch.float32, "device": None,
             "divide_factor": None, "all_reduce_group": None, "all_reduce_stream": None, "is_all_reducing": True, "partial_output": None, "all_reduce_hook": None,
             "is_sum_forced": False, "is_stream_returned": True, **bound}
    return held.reduce(lambda: "stock", Bound(**given), grads, held.group.fsdp_params)


class Mine(DefaultAllGather):
    pass


def test_calls_that_go_stock_are_told_once_a_collective_and_reason():
    held, told = of_four_ranks()
    for _ in range(3):
        assert gathered(held, Mine()) == "stock"
        assert reduced(held, [torch.zeros(4, 4)], divide_factor=0.0) == reduced(held, [torch.zeros(4, 4)], divide_factor=-1.0) == "stock"
    held.group.fsdp_params[0]._sharded_param_data = torch.zeros(3)
    gathered(held)
    assert told == ['tidec: group "g" all-gather stock for now: F106 its all-gather goes through an object of the user\'s own, Mine',
                    'tidec: group "g" reduce-scatter stock for now: F205 the divide factor is 0.0, no finite number above zero',
                    'tidec: group "g" all-gather stock for now: F204 "w" is not what it was at install: its shard has 3 values, not 4']
    assert held.counts[GATHER, because("F106", type="Mine")] == 3


def test_what_install_told_is_not_told_again():
    own = because("F107", type="Theirs")
    held, told = of_four_ranks(without=(None, own))
    held.reducer = None
    assert reduced(held, [torch.zeros(4, 4)]) == "stock" and told == [] and held.counts == {(REDUCE, own): 1}


def test_a_call_that_would_go_stock_is_refused_before_anything_of_it_is_done():
    """Every rank says so on the board, and looks whether the others say the same; gradients and the model's shards stay as they are."""
    held, told = of_four_ranks(is_required=True)
    with pytest.raises(TidecError, match='F106.*the all-gather of group "g" would be stock'):
        gathered(held, Mine())
    grads = [torch.zeros(4, 4)]
    with pytest.raises(TidecError, match='F205.*the reduce-scatter of group "g" would be stock'):
        reduced(held, grads, divide_factor=0.0)
    assert len(grads) == 1 and held.call is None and not held.is_broken and not held.counts and told == []
    assert [line.partition(", ")[2][:11] for line in held.board.lines] == ["stock: F106", "stock: F205"] and held.board.checked == [0, 1]


@pytest.mark.parametrize("name", ["param_dtype", "orig_dtype"])
def test_a_parameter_that_lacks_what_it_should_have_by_then_is_a_reason(name):
    held, _ = of_four_ranks()
    delattr(held.group.fsdp_params[0], name)
    assert gathered(held) == reduced(held, [torch.zeros(4, 4)]) == "stock"
    assert [(c, why.code, name in why.reason) for c, why in held.counts] == [(GATHER, "F110", True), (REDUCE, "F110", True)]


def default(*_: object) -> None:
    """FSDP2's own."""


def mine(*_: object) -> None:
    """A user's."""


def test_functions_of_the_users_own_keep_calls_stock(monkeypatch):
    """As torch 2.15 has them: one in the group, and one that foreach_reduce is given."""
    for name in versions.FUNCTIONS.values():
        monkeypatch.setattr(versions._fsdp_collectives, name, default, raising=False)
    held, _ = of_four_ranks()
    held.group._all_gather_output_fn = default
    assert held._why_stock_gather(held.group._all_gather_process_group, DefaultAllGather()) is None
    held.group._all_gather_output_fn = mine
    assert gathered(held) == reduced(held, [torch.zeros(4, 4)], packing=mine) == "stock"
    assert [str(why) for _, why in held.counts] == ["F106 its all-gather goes through an object of the user's own, mine",
                                                    "F107 its reduce-scatter goes through an object of the user's own, mine"]


def test_fsdp2_hands_its_functions_on(monkeypatch):
    """What torch 2.15 gives its functions by name reaches the group, and one that comes too late for a plan is refused, not left out."""
    for name in versions.FUNCTIONS.values():
        monkeypatch.setattr(versions._fsdp_collectives, name, default, raising=False)
    words = versions.FORMS["foreach_reduce"][-1][1].params

    def stock(*_: object, **__: object) -> str:
        return "stock"

    made: dict = {}
    exec(f"def foreach_reduce({', '.join(words)}): return 'stock'", made)
    hooks = Hooks(stock={"foreach_all_gather_copy_out": stock, "foreach_reduce": made["foreach_reduce"]})
    hooks._fit = SimpleNamespace(num_reduced=7)
    held, _ = of_four_ranks()
    processes = held.group._all_gather_process_group
    given = {"fsdp_params": held.group.fsdp_params, "unsharded_grads": [torch.zeros(4, 4)], "reduce_scatter_group": processes, "reduce_scatter_comm": DefaultReduceScatter(),
             "reduce_dtype": torch.float32, "prepare_reduce_scatter_inputs": mine}
    assert hooks._reducer()(**{**dict.fromkeys(w for w in words if w != "*"), **given}) == "stock"
    assert [why.code for _, why in held.counts] == ["F107"]
    result = Result(torch.zeros(0), None, None, [], [], [])
    result.held, result.number = held, 0
    landing = hooks._lander()
    with pytest.raises(TidecError, match="F106.*begun by its plan, and mine would copy it out"):
        landing(result, held.group.fsdp_params, processes, all_gather_output_fn=mine)
    assert landing("another result", [], processes, all_gather_output_fn=mine) == "stock"


def test_a_result_that_nobody_can_wait_for_is_dropped_where_the_model_is_given_back():
    held, _ = of_four_ranks()
    held.group._all_gather_result = Result(torch.zeros(0), None, None, [], [], [])

    def wait_for_unshard() -> None:
        raise TidecError(because_of_user)

    because_of_user = Diagnostic("F106", "it would be copied out by another")
    held.group.wait_for_unshard = wait_for_unshard
    with pytest.raises(TidecError):
        held.end_gather()
    assert held.group._all_gather_result is None
