"""The three functions of FSDP2 through which held groups run by plans.

FSDP2 calls foreach_all_gather, foreach_all_gather_copy_out and foreach_reduce by their names in one module. Those names lead here while any model is
installed; a group that is not held goes on to FSDP2's own functions, untouched. A parameter of a held group has one attribute more, its own
`free_unsharded_param`. Nothing else of FSDP2 is changed, and nothing of the model.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp_module

from tidec.errors import Diagnostic, TidecError
from tidec.run.held import Freed, Held, Result
from tidec.run.marks import marked
from tidec.run.reduce import Bound
from tidec.run.versions import Fit, check

NAMES = ("foreach_all_gather", "foreach_all_gather_copy_out", "foreach_reduce")


@dataclass(slots=True)
class Hooks:
    """FSDP2's three functions, and those that stand in their place while models are installed."""

    stock: dict[str, Callable] = field(default_factory=dict)
    ours: dict[str, Callable] = field(default_factory=dict)
    num_models: int = 0
    _fit: Fit | None = None

    def fit(self) -> Fit:
        """Whether FSDP2's functions are as tidec knows them."""
        if self._fit is None:
            self._fit = check()
        return self._fit

    def take(self) -> None:
        """Stand in their place, for one more model."""
        if self.num_models == 0:
            self.stock = {name: getattr(fsdp_module, name) for name in NAMES}
            self.ours = dict(zip(NAMES, (self._gatherer(), self._lander(), self._reducer())))
            for name, function in self.ours.items():
                setattr(fsdp_module, name, function)
        self.num_models += 1

    def check(self) -> None:
        """Raises F013 where the last model would go and somebody else has put a function of theirs around ours meanwhile: it would go on calling ours."""
        others = [name for name in NAMES if getattr(fsdp_module, name) is not self.ours[name]]
        if others and self.num_models == 1:
            raise TidecError(Diagnostic("F013", f"{others[0]} of FSDP2 was replaced by somebody else after tidec.install", help="take that one out first"))

    def give(self) -> None:
        """For one model less; with the last one FSDP2 has its own functions again. Raises what `check` raises."""
        self.check()
        if self.num_models == 1:
            for name, function in self.stock.items():
                setattr(fsdp_module, name, function)
        self.num_models -= 1

    def give_up(self) -> None:
        """For one model that nobody has any more; whatever else stands around ours stays."""
        self.num_models -= 1
        if self.num_models == 0:
            for name, function in self.stock.items():
                if getattr(fsdp_module, name) is self.ours[name]:
                    setattr(fsdp_module, name, function)

    def _gatherer(self) -> Callable:
        stock = self.stock["foreach_all_gather"]

        def foreach_all_gather(fsdp_params, group, async_op, copy_in_stream, stream, device, comm):
            held = _held(fsdp_params)
            if held is None:
                return stock(fsdp_params, group, async_op, copy_in_stream, stream, device, comm)
            with marked("all_gather", held.name):
                return held.gather(lambda: stock(fsdp_params, group, async_op, copy_in_stream, stream, device, comm), group, comm, packing=copy_in_stream, moving=stream)

        return foreach_all_gather

    def _lander(self) -> Callable:
        stock = self.stock["foreach_all_gather_copy_out"]

        def foreach_all_gather_copy_out(all_gather_result, fsdp_params, group, **others):
            if not isinstance(all_gather_result, Result):
                return stock(all_gather_result, fsdp_params, group, **others)
            with torch.no_grad(), marked("land", all_gather_result.held.name):
                all_gather_result.held.land(all_gather_result.number, others.get("all_gather_output_fn"))

        return foreach_all_gather_copy_out

    def _reducer(self) -> Callable:
        stock = self.stock["foreach_reduce"]
        names = tuple(inspect.signature(stock).parameters)
        is_stream_returned = self._fit.num_reduced == 7

        def foreach_reduce(*args, **kwargs):
            given = dict(zip(names, args), **kwargs)
            params = given["fsdp_params"]
            held = _held(params)
            if held is None:
                return stock(*args, **kwargs)
            bound = Bound(
                group=given["reduce_scatter_group"], stream=given["reduce_scatter_stream"], comm=given["reduce_scatter_comm"],
                orig_dtype=given["orig_dtype"] if "orig_dtype" in given else getattr(params[0], "orig_dtype", None), reduce_dtype=given["reduce_dtype"], device=given["device"],
                divide_factor=given["gradient_divide_factor"], all_reduce_group=given["all_reduce_group"], all_reduce_stream=given["all_reduce_stream"],
                is_all_reducing=given["all_reduce_grads"], partial_output=given["partial_reduce_output"], all_reduce_hook=given["all_reduce_hook"],
                is_sum_forced=given.get("force_sum_reduction_for_comms", False), is_stream_returned=is_stream_returned,
                packing=given.get("prepare_reduce_scatter_inputs"))
            with torch.no_grad(), marked("reduce_scatter", held.name):
                return held.reduce(lambda: stock(*args, **kwargs), bound, given["unsharded_grads"], params)

        return foreach_reduce


def is_held(fsdp_params: Sequence[object]) -> bool:
    """Whether some parameter is of a held group."""
    return any(isinstance(getattr(p, "free_unsharded_param", None), Freed) for p in fsdp_params)


def _held(fsdp_params) -> Held | None:
    """Whose the parameters are."""
    freed = getattr(fsdp_params[0], "free_unsharded_param", None) if fsdp_params else None
    return freed.held if isinstance(freed, Freed) else None
