"""Which torch this is, and whether FSDP2's own functions are as tidec knows them: a table of their arguments, and a check against it.

tidec stands in for three functions of FSDP2, and calls or reads a few more. Before that, what is there is compared with the table below, name by name. What
differs is named, and then nothing is touched. NOTE: the table was read in the sources of each version; run were 2.13.0 on the CPU, and 2.11.0 on two GPUs.
"""
from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group, _fsdp_state

from tidec.errors import Diagnostic, Level

# Every release whose functions were read. Within a minor version they are equal.
KNOWN = ("2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1", "2.15.0")


@dataclass(frozen=True, slots=True)
class Form:
    """What a function of FSDP2 looks like. params: names in order, "*" before those that are given by name only.  num_returned: of a tuple whose length matters, else 0."""

    params: tuple[str, ...]
    num_returned: int = 0

    def __str__(self) -> str:
        return f"({', '.join(self.params)})" + (f" -> {self.num_returned} values" if self.num_returned else "")


def _form(params: str, num_returned: int = 0) -> Form:
    return Form(tuple(params.split()), num_returned)


_SELF = _form("self")
_REDUCE = ("fsdp_params unsharded_grads reduce_scatter_group reduce_scatter_stream reduce_scatter_comm {} reduce_dtype device gradient_divide_factor "
           "all_reduce_group all_reduce_stream all_reduce_grads partial_reduce_output all_reduce_hook force_sum_reduction_for_comms")
_OUTPUTS = "self all_gather_input_numels all_gather_input_dtypes world_size device"

# Name: (minor version since which, form), newest last. Names with a dot are methods of a class.
FORMS: dict[str, tuple[tuple[str, Form], ...]] = {
    "foreach_all_gather": (("2.11", _form("fsdp_params group async_op all_gather_copy_in_stream all_gather_stream device all_gather_comm")),),
    "foreach_all_gather_copy_out": (("2.11", _form("all_gather_result fsdp_params group")),
                                    ("2.15", _form("all_gather_result fsdp_params group * all_gather_output_fn"))),
    "foreach_reduce": (("2.11", _form(_REDUCE.format("orig_dtype"), 6)), ("2.13", _form(_REDUCE.format("orig_dtype"), 7)),
                       ("2.15", _form(_REDUCE.replace("{} ", "") + " * prepare_reduce_scatter_inputs", 7))),
    "FSDPParam.init_all_gather_outputs": (("2.11", _form(_OUTPUTS + " force_recreate")), ("2.13", _form(_OUTPUTS))),
    "FSDPParam.alloc_all_gather_outputs": (("2.11", _SELF),),
    "FSDPParam.free_unsharded_param": (("2.11", _SELF),),
    "FSDPParam.init_unsharded_param": (("2.11", _SELF),),
    "FSDPParam.to_sharded": (("2.11", _SELF),),
    "FSDPParam.to_unsharded": (("2.11", _SELF),),
    "FSDPParam.reset_sharded_param": (("2.11", _SELF),),
    "FSDPParam.to_sharded_dtensor": (("2.11", _form("self tensor")),),
    "FSDPParamGroup.unshard": (("2.11", _form("self async_op")),),
    "FSDPParamGroup.wait_for_unshard": (("2.11", _SELF),),
    "FSDPParamGroup.reshard": (("2.11", _SELF),),
    "FSDPParamGroup.post_backward": (("2.11", _form("self *unused")),),
    "FSDPParamGroup.finalize_backward": (("2.11", _SELF),),
    "FSDPParamGroup._prefetch_unshard": (("2.11", _form("target_fsdp_param_group pass_type")),),
    "FSDPState._lazy_init": (("2.11", _SELF),),
}

# The values of AllGatherResult. The function that makes it has the same body in all versions.
RESULT_FIELDS = ("all_gather_output", "all_gather_event", "all_gather_work", "param_all_gather_input_dtypes", "param_all_gather_input_numels", "all_gather_input_split_sizes")

# What tidec reads of a group of FSDP2's and of its parameters, at install or in a call. A group of which one is missing stays stock (F110).
GROUP_READS = (
    "modules", "fsdp_params", "mp_policy", "mesh_info", "post_forward_mesh_info", "_use_post_forward_mesh", "device", "_all_gather_comm", "_reduce_scatter_comm",
    "reduce_grads", "is_sharded", "wait_for_unshard", "_training_state", "_all_gather_result", "_all_gather_process_group")
PARAM_READS = (
    "_module_info", "_orig_size", "fsdp_placement", "is_dtensor", "offload_to_cpu", "sharded_param", "sharded_size", "contiguous_sharded_stride", "sharded_state",
    "_sharded_local_tensor", "_sharded_param_data", "all_gather_outputs", "init_all_gather_outputs", "free_unsharded_param", "to_sharded_dtensor")
# What a parameter has from its first forward pass on: looked at by then, or else in each call.
LATE_PARAM_READS = ("param_dtype", "orig_dtype")

# From 2.15 on a group has these functions, which somebody may replace: what copies an all-gather's result out, and what packs gradients. FSDP2's own, by name.
FUNCTIONS = {"_all_gather_output_fn": "_default_all_gather_output_fn", "_prepare_reduce_scatter_inputs": "_default_reduce_scatter_input_fn"}

# With it a storage can be lent to another one: 2.12 has it first.
LOAN = "_swap_data_ptr_"
_LOAN_SINCE = "2.12"


@dataclass(frozen=True, slots=True)
class Fit:
    """What the check found. differs: the first thing that is not as known, "" where all is.  is_known: this very release was looked at.

    num_reduced: how many values foreach_reduce returns.  has_loan: a storage can be lent.
    """

    version: str
    differs: str
    is_known: bool
    num_reduced: int = 0
    has_loan: bool = False

    @property
    def warning(self) -> Diagnostic | None:
        """What to say of a version that fits and was not looked at."""
        if self.differs or self.is_known:
            return None
        return Diagnostic("F307", f"torch {self.version} was not looked at; the functions that tidec uses are as in {KNOWN[0]} to {KNOWN[-1]}", level=Level.WARNING,
                          help="compare a few steps with TIDEC_DISABLE=1 before a long run")


def check(*, version: str = torch.__version__, module: object = _fsdp_param_group, states: object = _fsdp_state, storage: type = torch.UntypedStorage) -> Fit:
    """Compare what is installed with the table.

    module, states: torch's _fsdp_param_group and _fsdp_state, or stand-ins.  storage: the class of storages.
    Call it while FSDP2 has its own functions.
    """
    is_known = version.partition("+")[0] in KNOWN
    if _minor(version) < _minor(KNOWN[0]):
        return Fit(version, f"it is older than {KNOWN[0]}", is_known)
    places = SimpleNamespace(**{name: getattr(module, name) for name in ("FSDPParam", "FSDPParamGroup") if hasattr(module, name)},
                             **{name: getattr(states, name) for name in ("FSDPState",) if hasattr(states, name)})
    for name, forms in FORMS.items():
        differs = _differs(name, _found(name, module, places), _wanted(forms, version))
        if differs:
            return Fit(version, differs, is_known)
    fields = getattr(getattr(module, "AllGatherResult", None), "_fields", None)
    if fields != RESULT_FIELDS:
        return Fit(version, f"AllGatherResult has {', '.join(fields) if fields else 'no fields'}, not {', '.join(RESULT_FIELDS)}", is_known)
    has_loan = callable(getattr(storage, LOAN, None))
    if not has_loan and _minor(version) >= _minor(_LOAN_SINCE):
        return Fit(version, f"UntypedStorage has no {LOAN}", is_known)
    return Fit(version, "", is_known, _wanted(FORMS["foreach_reduce"], version).num_returned, has_loan)


def check_reads(group: object) -> None:
    """Raises AttributeError, or what a property raises, where a group of FSDP2's, sharded over several ranks, lacks what tidec reads of it."""
    for name in (*GROUP_READS, *(name for name, default in FUNCTIONS.items() if hasattr(_fsdp_collectives, default))):
        getattr(group, name)
    for p in group.fsdp_params:
        for name in PARAM_READS:
            getattr(p, name)
        if any(hasattr(p, name) for name in LATE_PARAM_READS):
            check_late_reads((p,))


def check_late_reads(params: Sequence[object]) -> None:
    """The same of parameters once a forward pass has begun."""
    for p in params:
        for name in LATE_PARAM_READS:
            getattr(p, name)


def own_function(name: str, function: object) -> str:
    """What a user's own function is called that stands where FSDP2 has one of FUNCTIONS; "" = FSDP2's stands there, or none."""
    if function is None or function is getattr(_fsdp_collectives, FUNCTIONS[name], None):
        return ""
    return getattr(function, "__qualname__", type(function).__name__)


def _wanted(forms: tuple[tuple[str, Form], ...], version: str) -> Form:
    return [form for since, form in forms if _minor(since) <= _minor(version)][-1]


def _found(name: str, module: object, places: object) -> object:
    owner, _, method = name.rpartition(".")
    return getattr(getattr(places, owner, None), method, None) if owner else getattr(module, name, None)


def _differs(name: str, function: object, want: Form) -> str:
    if not callable(function):
        return f"there is no {name}"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return f"{name} does not tell its arguments"
    params = tuple(_spelt(signature))
    if params != want.params:
        return f"{name} takes ({', '.join(params)}), not ({', '.join(want.params)})"
    returned = _num_returned(signature.return_annotation) if want.num_returned else 0
    return f"{name} returns {returned} values, not {want.num_returned}" if returned != want.num_returned else ""


def _spelt(signature: inspect.Signature) -> typing.Iterator[str]:
    """Names as the table has them."""
    is_open = True
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and is_open:
            is_open = False
            yield "*"
        is_open = is_open and p.kind is not p.VAR_POSITIONAL
        yield {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "") + p.name


def _num_returned(annotation: object) -> int:
    """The length of a tuple type, 0 where it is none."""
    if isinstance(annotation, str):
        node = ast.parse(annotation, mode="eval").body
        return len(node.slice.elts) if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) else 0
    return len(typing.get_args(annotation)) if typing.get_origin(annotation) is tuple else 0


def _minor(version: str) -> tuple[int, int]:
    """(2, 13) of "2.13.0+cpu"; (0, 0) where it is no such text."""
    parts = version.split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdecimal() and parts[1].isdecimal() else (0, 0)
