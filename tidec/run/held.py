"""A parameter group of FSDP2 whose collectives are tidec's: its all-gathers land in a ring, its gradients are reduced by a plan.

Every call decides anew whether it runs by the plan or stays stock. The decision depends on the order of calls and on what the model is, never on
timing, so it is the same on every rank; each rank writes it on the board, and the board is checked once the call is over, or on a GPU, where the host does
not wait for it, with the calls after it.
"""
from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather
from torch.distributed.fsdp._fully_shard._fsdp_collectives import AllGatherResult, DefaultAllGather, DefaultReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam, ShardedState
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.ask import Collective, Mode
from tidec.inputs.document import quoted
from tidec.plan.ir import Plan
from tidec.run.agree import Board
from tidec.run.arena import TORCH_DTYPES, Landing, emptied, made_own, plain
from tidec.run.capture import ODD
from tidec.run.collective import Reducer, Ring
from tidec.run.count import Account
from tidec.run.device import CPU, Device
from tidec.run.fallback import Reason, because, later_line, refusal
from tidec.run.reduce import Bound, Returned, reduced, scale_of
from tidec.run.versions import check_late_reads, own_function


class Result(AllGatherResult):
    """The result of an all-gather that a plan runs. held: whose it is.  number: of its line on the board."""

    held: Held
    number: int


class Freed:
    """`free_unsharded_param` of a parameter whose group is held: a landing that is lent is taken back, then FSDP2's own function runs."""

    def __init__(self, held: Held, index: int, stock: Callable[[], None]):
        self.held, self.index, self.stock = held, index, stock

    def __call__(self) -> None:
        self.held.take_back(self.index)
        self.stock()


def is_autograd_compiled() -> bool:
    """Whether compiled autograd is on. Nobody has it on who has not imported it, and importing it takes seconds."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return module is not None and bool(module.compiled_autograd_enabled or module.in_compiled_autograd_region)


@dataclass(slots=True)
class Held:
    """One group.

    group_of: its FSDPParamGroup, which is not kept alive.  ring, reducer: `None` = that collective stays stock, for the reason in `without`.
    kept: the plan that reduces gradients which FSDP2 has kept in fp32 over several backward passes; `None` = there is none.  open: gives what runs a plan.
    lent: parameters whose storage is the landing's.  counts: calls by collective and why they were stock, `None` where a plan ran them.
    is_broken: a collective stopped, and no other will end.  accounts: what was carried out in calls by plan that are over.
    sharing: all groups of the ring, this one too.  device: where its parameters lie.
    is_required: a call that would go stock is an error.  tell: prints a line on one rank.  told: collectives and codes of which a line was printed.
    """

    name: str
    group_of: Callable[[], FSDPParamGroup]
    board: Board
    mode: Mode
    ring: Ring | None
    reducer: Reducer | None
    without: tuple[Reason | None, Reason | None]
    kept: Plan | None
    open: Callable[[Plan], Ring | Reducer | Reason]
    call: int | None = None
    landing: Landing | None = None
    lent: set[int] = field(default_factory=set)
    is_vacated: bool = False
    is_broken: bool = False
    counts: Counter[tuple[Collective, Reason | None]] = field(default_factory=Counter)
    accounts: Mapping[Collective, Account] = field(default_factory=lambda: {c: Account() for c in Collective})
    sharing: tuple[Held, ...] = ()
    device: Device = CPU
    is_required: bool = False
    tell: Callable[[str], None] = print
    told: set[tuple[Collective, str]] = field(default_factory=set)

    @property
    def group(self) -> FSDPParamGroup:
        return self.group_of()

    # ---- all-gather

    def gather(
        self, stock: Callable[[], AllGatherResult | None], group: object, comm: AllGather, *, packing: torch.Stream, moving: torch.Stream,
    ) -> AllGatherResult | None:
        """Start this group's all-gather, by the plan or stock. packing, moving: the streams on which FSDP2 reads its shards, and gathers."""
        self._make_room()
        why = self._why_stock_gather(group, comm)
        number = self._say(Collective.ALL_GATHER, why)
        if why:
            result = stock()
            self._node(lambda: self.board.check(number))
            return result
        shards = [p._sharded_param_data for p in self.group.fsdp_params]
        self.call, read = self._node(lambda: self.ring.gather(shards, self.accounts[Collective.ALL_GATHER], packing=packing, moving=moving))
        # Where FSDP2 drops a result that nobody waited for, it waits until the shards have been read.
        result = Result(shards[0].new_empty(0), read, None, [], [], [])
        result.held, result.number = self, number
        return result

    def land(self, number: int, copying: object = None) -> None:
        """Wait for the landing, and lend it to the group's parameters.

        copying: what FSDP2 would copy the result out with, from torch 2.15 on.  Raises F106 where that is a user's own by now: the call was begun without it.
        """
        own = own_function("_all_gather_output_fn", copying)
        if own:
            raise TidecError(Diagnostic("F106", f"the all-gather of group {quoted(self.name)} was begun by its plan, and {own} would copy it out",
                                        reason="FSDP2 was given that function after the all-gather had begun", help="give it while the group is sharded"))
        plan = self.ring.plan
        self.landing = self._node(lambda: self.ring.acquire(self.call))
        self._node(lambda: self.board.check(number))
        for i, (p, rows, dtype) in enumerate(zip(self.group.fsdp_params, plan.layout.params, plan.gathered)):
            if not p.all_gather_outputs:
                p.init_all_gather_outputs([rows.shard_elems], [TORCH_DTYPES[dtype]], plan.ranks, self.group.device)
            output = p.all_gather_outputs[0]
            # Ctrl-C may have come between two of them.
            if self.landing.is_lent(i, output):
                self.lent.add(i)
                continue
            emptied(output)
            if self.landing.lend(i, output):
                self.lent.add(i)

    def take_back(self, i: int) -> None:
        """A parameter is resharded; with the last one the landing is let go, or kept for this group's gradients."""
        if i not in self.lent:
            return
        self.landing.take_back(i, self.group.fsdp_params[i].all_gather_outputs[0])
        self.lent.discard(i)
        if not self.lent:
            self.is_vacated = (
                self.mode is Mode.SLOT_REUSE and self.reducer is not None and self.group.reduce_grads and self.group._training_state == TrainingState.POST_BACKWARD)
            if not self.is_vacated:
                self._let_go()

    def reclaim(self) -> None:
        """Let a landing go that nobody will: of an all-gather whose result FSDP2 dropped, or of a group that came to no reduce-scatter."""
        if self.call is not None and not self.lent and (self.is_vacated or self.landing is None and self.group._all_gather_result is None and self.group.is_sharded):
            self._let_go()

    def _make_room(self) -> None:
        """Where the ring is full because a group stays unsharded (kept after its forward pass, or until the end of a backward pass), move that group out.

        NOTE: one that computes, or whose all-gather is still under way, keeps its landing; then this call stays stock.
        """
        if self.ring is None:
            return
        for other in self.sharing:
            other.reclaim()
        if self.ring.is_full:
            for other in self.sharing:
                if other.lent and self.ring.is_next_bank_of(other.call) and other.group._training_state == TrainingState.IDLE:
                    other.leave()

    def end_gather(self) -> None:
        """Where the plan's all-gather is under way, have FSDP2 wait for it, so that whoever waits later finds the group unsharded.

        One that will never end, after a collective that stopped or where waiting fails, is dropped: the group stays sharded. Raises R001 where it stops here.
        """
        if not isinstance(self.group._all_gather_result, Result):
            return
        try:
            if not self.is_broken:
                self.group.wait_for_unshard()
        finally:
            if isinstance(self.group._all_gather_result, Result):
                self.group._all_gather_result = None

    def leave(self) -> None:
        """Give every parameter that is unsharded a storage of its own, with its values."""
        if self.landing is not None:
            for i in sorted(self.lent):
                made_own(self.group.fsdp_params[i].all_gather_outputs[0], self.landing, i)
            self.lent.clear()
        if self.call is not None:
            self._let_go()

    def _let_go(self) -> None:
        call, self.call, self.landing, self.is_vacated = self.call, None, None, False
        if not self.is_broken:
            self._node(lambda: self.ring.let_go(call))

    def _why_stock_gather(self, group: object, comm: AllGather) -> Reason | None:
        if self.ring is None:
            return self.without[0]
        if is_autograd_compiled():
            return because("F207")
        if type(comm) is not DefaultAllGather:
            return because("F106", type=type(comm).__name__)
        own = own_function("_all_gather_output_fn", getattr(self.group, "_all_gather_output_fn", None))
        if own:
            return because("F106", type=own)
        if any(p.sharded_state != ShardedState.SHARDED for p in self.group.fsdp_params):
            return because("F105", ranks=group.size())
        if group is not self.group._all_gather_process_group or group.size() != self.ring.plan.ranks:
            return because("F206")
        lacking = self._lacking()
        if lacking:
            return because("F110", what=lacking)
        plan = self.ring.plan
        for p, rows, gathered in zip(self.group.fsdp_params, plan.layout.params, plan.gathered, strict=True):
            num_elems, found, want = p._sharded_param_data.numel(), p.param_dtype or p.orig_dtype, TORCH_DTYPES[gathered]
            if num_elems != rows.shard_elems:
                return because("F204", parameter=quoted(rows.name), what=f"its shard has {num_elems} values, not {rows.shard_elems}")
            if found != want:
                return because("F204", parameter=quoted(rows.name), what=f"it is gathered in {found}, not {want}")
        if self.call is not None or self.ring.is_full:
            names = [h.name for h in self.sharing if h.call is not None]
            return because("F201", held=f"{', '.join(map(quoted, names))} {'holds' if len(names) == 1 else 'hold'} them")
        return None

    # ---- reduce-scatter

    def reduce(self, stock: Callable[[], Returned], bound: Bound, grads: list[torch.Tensor], params: Sequence[FSDPParam]) -> Returned:
        """Reduce this group's gradients, by the plan or stock.

        grads: cleared, as stock does. params: those that have a gradient, in the group's order.
        """
        given = {p.free_unsharded_param.index: grad for p, grad in zip(params, grads) if isinstance(p.free_unsharded_param, Freed)}
        reducer, why = self._reducer_of(bound, given, len(params))
        missing = [] if self.reducer is None else [r.name for i, r in enumerate(self.reducer.plan.layout.params) if r.is_trainable and i not in given]
        number = self._say(Collective.REDUCE_SCATTER, why, f" without a gradient of {', '.join(missing)}" if missing else "")
        if why:
            returned = stock()
            self._finish_reduce(number)
            return returned
        # Gradients in fp32 do not fit where parameters in bf16 lay.
        is_reused = self.is_vacated and reducer is self.reducer
        if is_reused:
            addresses = {i: self.landing.fill(i, grad) for i, grad in given.items() if grad.numel()}
        else:
            given = {i: plain(grad) for i, grad in given.items()}
            addresses = {i: grad.data_ptr() for i, grad in given.items()}
        grads.clear()
        if is_reused:
            given.clear()
        kept = tuple(given.values()) if self.device.is_behind else ()

        def run(out: torch.Tensor | int, alpha: float, accumulate: bool) -> torch.Event | None:
            summed = self._node(lambda: reducer.reduce(addresses, out, alpha, self.accounts[Collective.REDUCE_SCATTER], accumulate=accumulate))
            self._finish_reduce(number)
            return summed

        return reduced(reducer.plan, run, bound, params, [p.free_unsharded_param.index for p in params], device=self.device, kept=kept)

    def _finish_reduce(self, number: int) -> None:
        if self.is_vacated:
            self._let_go()
        self._node(lambda: self.board.check(number))

    def _reducer_of(self, bound: Bound, given: Mapping[int, torch.Tensor], num_params: int) -> tuple[Reducer | None, Reason | None]:
        """What reduces these gradients, or why nothing of tidec's does. Where gradients were kept for the first time, the ranks open what reduces them."""
        if self.reducer is None:
            return None, self.without[1]
        is_kept = self.kept is not None and bool(given) and all(grad.dtype == torch.float32 for grad in given.values())
        plan = self.kept if is_kept else self.reducer.plan
        why = self._why_stock_reduce(plan, bound, given, num_params)
        if why is not None or not is_kept:
            return self.reducer, why
        found = self._node(lambda: self.open(plan))
        return (None, found) if isinstance(found, Reason) else (found, None)

    def _why_stock_reduce(self, plan: Plan, bound: Bound, given: Mapping[int, torch.Tensor], num_params: int) -> Reason | None:
        if is_autograd_compiled():
            return because("F207")
        if type(bound.comm) is not DefaultReduceScatter:
            return because("F107", type=type(bound.comm).__name__)
        own = own_function("_prepare_reduce_scatter_inputs", bound.packing)
        if own:
            return because("F107", type=own)
        lacking = self._lacking()
        if lacking:
            return because("F110", what=lacking)
        want = TORCH_DTYPES[plan.gradient_dtype]
        if bound.group is None or bound.group.size() != plan.ranks:
            return because("F206")
        if (bound.reduce_dtype or want) is not torch.float32:
            return because("F203", found=bound.reduce_dtype or want)
        if scale_of(bound) is None:
            return because("F205", factor=bound.divide_factor)
        if len(given) != num_params:
            return because("F204", parameter="a parameter", what="the group did not have it at install")
        for i, grad in given.items():
            rows = plan.layout.params[i]
            if not rows.is_trainable:
                return because("F204", parameter=quoted(rows.name), what="it was frozen at install, and has a gradient")
            if grad.layout is not torch.strided:
                return because("F204", parameter=quoted(rows.name), what=f"its gradient is {str(grad.layout).removeprefix('torch.')}")
            if grad.dtype != want:
                return because("F202", parameter=quoted(rows.name), found=grad.dtype, wanted=want)
            if grad.numel() != rows.real_elems:
                return because("F204", parameter=quoted(rows.name), what=f"its gradient has {grad.numel()} values, not {rows.real_elems}")
        return None

    # ---- both

    def _lacking(self) -> str:
        """What a parameter should have by its first call and has not; "" = nothing."""
        try:
            check_late_reads(self.group.fsdp_params)
        except ODD as problem:
            return f"{type(problem).__name__}: {problem}"
        return ""

    def _say(self, collective: Collective, why: Reason | None, also: str = "") -> int:
        """Write on the board how this call goes. Raises the reason by its code where it may not go so; then nothing of it was begun, here or on any other rank."""
        number = self.board.write(f"the {collective.value.replace('_', '-')} of {self.name}{also}, {f'stock: {why}' if why else 'by its plan'}")
        if why is not None and self.is_required:
            self._node(lambda: self.board.check(number))
            raise refusal(self.name, collective, why)
        self.counts[collective, why] += 1
        if why is not None and why is not self.without[0 if collective is Collective.ALL_GATHER else 1] and (collective, why.code) not in self.told:
            self.told.add((collective, why.code))
            self.tell(later_line(self.name, collective, why))
        return number

    def _node(self, call: Callable[[], object]):
        is_over = False
        try:
            result = call()
            is_over = True
            return result
        except RuntimeError as problem:
            raise TidecError(Diagnostic("R001", f"a collective of {self.name} stops", reason="; ".join([str(problem), *self.board.where()]),
                                        help="look at the rank that is missing or silent")) from problem
        finally:
            # Whatever ended it, a handler of a signal for one: nodes do not go on after that.
            self.is_broken = self.is_broken or not is_over
