"""A live model under `fully_shard` as a group file: what FSDP2 shards together, in its own order, in the words of `inputs/signature.py`.

Nothing is moved, and nothing of the model is changed: one on the meta device, or one that has not run yet, gives the same file as one that trains.
"""
from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.document import quoted
from tidec.inputs.signature import SCHEMA, Dtype, Group, Parameter, Signature, read_groups
from tidec.run.arena import TORCH_DTYPES

_DTYPES = {of_torch: dtype for dtype, of_torch in TORCH_DTYPES.items()}

# What an object that is not as FSDP2 makes it may raise when it is looked at.
ODD = (AttributeError, TypeError, ValueError, LookupError, RuntimeError, AssertionError)

# What torch.compile and activation checkpointing put between a module and its name. A plan must not depend on them.
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """One parameter group of a live model.

    name: its module's, several with ", " between, "root" for the root's; no two groups of a model share one.
    group: FSDP2's own FSDPParamGroup.  params: names in the order of its fsdp_params, relative to its module, so that equal blocks have equal plans.
    tied_to: of each parameter, the other names of its tensor, in full.  odd: what of the group is not as FSDP2 makes it, so that it has no names; "" = nothing.
    """

    name: str
    group: object
    params: tuple[str, ...]
    tied_to: tuple[tuple[str, ...], ...]
    odd: str = ""


def groups_of(root: nn.Module) -> tuple[LiveGroup, ...]:
    """The parameter groups of all of a model's `fully_shard` states, in the order in which FSDP2 lists them: modules before their children.

    Works before the first forward pass and after it, and where the root itself is not under `fully_shard`.
    Raises F110 where a state of FSDP2 has no such list.
    """
    modules = {id(module): _clean(name) for name, module in root.named_modules()}
    every: dict[int, list[str]] = {}
    for name, module in root.named_modules(remove_duplicate=False):
        every.setdefault(id(module), []).append(_clean(name))
    found = []
    taken = set(modules.values())
    for state in _states(root):
        groups = _groups_of_state(state)
        for i, group in enumerate(groups):
            try:
                of = [modules.get(id(module), type(module).__name__) for module in group.modules]
                params, tied = _parameter_names(group, of, every)
            except ODD as problem:
                found.append(LiveGroup(f"group {len(found)}", group, (), (), odd=f"{type(problem).__name__}: {problem}"))
                continue
            name = ", ".join(of) or ("root" if "root" not in taken else class_name(root))
            found.append(LiveGroup(f"{name} [{i}]" if len(groups) > 1 else name, group, params, tied))
    return tuple(found)


def read_group(live: LiveGroup, *, mesh: str = "") -> Group:
    """A live group as the planner sees it. mesh: what a group file says where the group is sharded apart from the model's other groups.

    FSDP2 takes contiguous parameters only, so there is no stride to tell.
    Raises F002 where a type has no name in group files.
    """
    params = tuple(_parameter(p, name, tied) for p, name, tied in zip(live.group.fsdp_params, live.params, live.tied_to, strict=True))
    policy = live.group.mp_policy
    param_dtype = None if policy.param_dtype is None else _dtype(policy.param_dtype, f"param_dtype of group {quoted(live.name)}")
    return Group(live.name, 1, params, param_dtype=param_dtype, reduce_dtype=_reduce_dtype(live), mesh=mesh)


def capture(model: nn.Module) -> dict[str, object]:
    """The group file of a model, as the object that is written as JSON (`tidec.group/1`), one entry a group of `groups_of`.

    Guaranteed: `read_groups` reads it; on one node of as many lanes as ranks, compile makes the plans of it that `tidec.install` makes.
    Raises F001 where nothing of the model is under `fully_shard`; what `groups_of` and `read_group` raise; P005 where a shape cannot be planned.
    """
    groups = _read_all(groups_of(model))
    if not groups:
        raise TidecError(Diagnostic("F001", f"nothing of {class_name(model)} is under fully_shard", help="call fully_shard on its blocks and on the model first"))
    named = {p.name for g in groups for p in g.params}
    of_model = class_name(model)
    content: dict[str, object] = {
        "schema": SCHEMA, "model": of_model, "source": f"tidec.capture, torch {torch.__version__}",
        "total_params": sum(p.elems for g in groups for p in g.params), "install": True, "groups": [_jsonable(g, named, of_model) for g in groups],
    }
    read_groups(json.dumps(content), file=f"{of_model}.json")
    return content


def signature_of(model: nn.Module) -> Signature:
    """The groups of a model as the planner sees them; what `load_groups` gives for the file of `capture`. Raises as `capture`."""
    content = capture(model)
    return read_groups(json.dumps(content), file=f"{content['model']}.json")


def write_groups(content: dict[str, object], path: str | os.PathLike[str]) -> None:
    """Write what `capture` gave: a line a parameter, renamed into place. Raises E003."""
    text = _text(content)
    beside = f"{os.fspath(path)}.{os.getpid()}.part"
    try:
        with open(beside, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(beside, path)
    except OSError as problem:
        raise TidecError(Diagnostic("E003", f"{os.fspath(path)} cannot be written", reason=str(problem.strerror), help="give the group file another place")) from problem


def _states(root: nn.Module) -> Iterator[object]:
    """Every FSDPState below a module, once, in the order of `named_modules`, which is that of FSDPStateContext.all_states."""
    seen: set[int] = set()
    for module in root.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            if id(state) not in seen:
                seen.add(id(state))
                yield state


def _groups_of_state(state: object) -> Sequence[object]:
    """The groups of a state: one or none up to torch 2.11, from 2.12 on any number."""
    try:
        if hasattr(state, "_fsdp_param_groups"):
            return tuple(state._fsdp_param_groups)
        return () if state._fsdp_param_group is None else (state._fsdp_param_group,)
    except ODD as problem:
        raise _odd(f"{type(problem).__name__}: {problem}") from problem


def _odd(what: str) -> TidecError:
    return TidecError(Diagnostic("F110", "a parameter group of FSDP2 cannot be read", reason=what, help="install a version of torch that tidec knows"))


def _parameter_names(group: object, of: list[str], every: dict[int, list[str]]) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The names of a group's parameters relative to its modules, and of each the other full names of its tensor."""
    prefix = of[0] if len(of) == 1 else _common(of)
    params, tied = [], []
    for i, p in enumerate(group.fsdp_params):
        info = p._module_info
        places = zip((info.module, *info.shared_modules), (info.param_name, *info.shared_param_names))
        names = list(dict.fromkeys(_join(at, name) for module, name in places for at in every.get(id(module), [f"{type(module).__name__}#{i}"])))
        own = next((name for name in names if name.startswith(prefix + ".")), names[0]) if prefix else names[0]
        params.append(own[len(prefix) + 1:] if prefix and own.startswith(prefix + ".") else own)
        tied.append(tuple(name for name in names if name != own))
    return tuple(params), tuple(tied)


def _parameter(p: object, name: str, tied: tuple[str, ...]) -> Parameter:
    stored = p.sharded_param
    return Parameter(name, tuple(p._orig_size), _dtype(stored.dtype, f"parameter {quoted(name)}"), stored.requires_grad, tied, p.fsdp_placement.dim)


def _reduce_dtype(live: LiveGroup) -> Dtype:
    """What gradients are summed in: the policy's, or else their own type, which from torch 2.15 on is the stored one."""
    group = live.group
    trained = [p.sharded_param.dtype for p in group.fsdp_params if p.sharded_param.requires_grad]
    if not trained:
        return Dtype.FP32
    asked = group.mp_policy.reduce_dtype
    if asked is None:
        # NOTE: 2.15 has no argument orig_dtype in foreach_reduce any more: its _reduce_dtype is always a type.
        asked = trained[0] if _follows_stored(group) else group.mp_policy.param_dtype or trained[0]
    return _dtype(asked, f"reduce_dtype of group {quoted(live.name)}")


def _follows_stored(group: object) -> bool:
    return not hasattr(type(group.fsdp_params[0]), "accumulate_unsharded_grad_if_needed")


def _dtype(dtype: torch.dtype, what: str) -> Dtype:
    if dtype not in _DTYPES:
        raise TidecError(Diagnostic("F002", f"{what} is {str(dtype).removeprefix('torch.')}, which group files have no name for",
                                    reason="they have bf16, fp16, fp32 and fp64", help="leave it out of fully_shard: ignored_params={...}"))
    return _DTYPES[dtype]


def _read_all(lives: Sequence[LiveGroup]) -> tuple[Group, ...]:
    """All groups; those that are not sharded over the same ranks as most have a mesh."""
    for live in lives:
        if live.odd:
            raise _odd(live.odd)
    try:
        shards = [_shard_ranks(live.group) for live in lives]
        counted = Counter(shards)
        common = max(counted, key=lambda ranks: (counted[ranks], -shards.index(ranks)), default=())
        return tuple(read_group(live, mesh="" if ranks == common and not _is_dtensor(live.group) else _mesh(live.group)) for live, ranks in zip(lives, shards))
    except ODD as problem:
        raise _odd(f"{type(problem).__name__}: {problem}") from problem


def _shard_ranks(group: object) -> tuple[int, ...]:
    """The ranks among which a group is sharded, () where it is replicated."""
    process_group = getattr(group.mesh_info, "shard_process_group", None)
    return () if process_group is None else tuple(dist.get_process_group_ranks(process_group))


def _is_dtensor(group: object) -> bool:
    return any(p.is_dtensor for p in group.fsdp_params)


def _mesh(group: object) -> str:
    """Canonical JSON of a mesh, the same on every rank: names or numbers of its dimensions, sizes, and whether parameters are sharded by others too."""
    info = group.mesh_info
    names = info.mesh.mesh_dim_names or tuple(map(str, range(info.mesh.ndim)))
    content: dict[str, object] = {"dims": [[name, size] for name, size in zip(names, info.mesh.shape)], "shard": info.shard_mesh_dim}
    if _is_dtensor(group):
        content["dtensor"] = True
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _jsonable(group: Group, named: set[str], of_model: str) -> dict[str, object]:
    """One entry of `groups`. Where another group has a parameter of a tied name, the name says the model too, so that they are not taken for one."""
    params = []
    for p in group.params:
        tied = [f"{of_model}.{other}" if other in named else other for other in p.tied_to]
        params.append({"name": p.name, "shape": list(p.shape), "dtype": p.dtype.value, **({} if p.requires_grad else {"requires_grad": False}),
                       **({"shard_dim": p.shard_dim} if p.shard_dim else {}), **({"tied_to": tied} if tied else {})})
    return {"name": group.name, **({"param_dtype": group.param_dtype.value} if group.param_dtype else {}), "reduce_dtype": group.reduce_dtype.value,
            **({"mesh": json.loads(group.mesh)} if group.mesh else {}), "params": params}


def _text(content: dict[str, object]) -> str:
    """JSON with a line a parameter."""
    head = [f' {json.dumps(key)}: {json.dumps(value)},' for key, value in content.items() if key != "groups"]
    groups = []
    for group in content["groups"]:
        keys = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in group.items() if key != "params")
        params = ",\n".join(f"   {json.dumps(p)}" for p in group["params"])
        groups.append(f"  {{{keys}, \"params\": [\n{params}\n  ]}}")
    return "\n".join(["{", *head, ' "groups": [', ",\n".join(groups), " ]", "}", ""])


def _clean(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _common(names: Sequence[str]) -> str:
    """The module that holds all of these."""
    return ".".join(os.path.commonprefix([name.split(".")[:-1] for name in names]))


def _join(module: str, name: str) -> str:
    return f"{module}.{name}" if module else name


def class_name(model: nn.Module) -> str:
    """The name of the class that the user wrote: `fully_shard` makes one of it named FSDP<that>."""
    name = type(model).__name__
    return name.removeprefix("FSDP") if isinstance(model, FSDPModule) else name
