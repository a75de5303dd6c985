"""What FSDP2 shards together: the parameter groups of a model, as its group file gives them.

D rows, K values a row: a parameter is read as (D, K), its first dimension by the product of the others.
"""
from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum

from tidec.inputs.document import MAX_INT64, REFERENCE, Document, Member, Node, Object, kind_of, parse, plain_text, quoted, read_file

SCHEMA = "tidec.group/1"

_ABOUT_KEYS = ("model", "source", "config", "total_params", "published_params", "notes")
_FILE_KEYS = ("schema", "params", "groups", "install", *_ABOUT_KEYS)
_GROUP_KEYS = ("name", "repeat", "params", "param_dtype", "reduce_dtype", "mesh", "landings")
LANDINGS = 2
_PARAMETER_KEYS = ("name", "shape", "dtype", "requires_grad", "tied_to", "shard_dim", "stride")


class Dtype(Enum):
    """A floating-point type, by the name that files use."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"
    FP64 = "fp64"

    @property
    def item_bytes(self) -> int:
        """Bytes of one value."""
        return {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}[self.value]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of a group.

    shape: at least one extent, each 0 or more; contiguous.  dtype: what its shards are stored in.
    requires_grad: its gradient is reduced.  tied_to: other names of the same tensor.  shard_dim: FSDP2's Shard(dim).
    """

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    requires_grad: bool = True
    tied_to: tuple[str, ...] = ()
    shard_dim: int = 0

    def __post_init__(self) -> None:
        assert self.shape and all(type(extent) is int and extent >= 0 for extent in self.shape), (self.name, self.shape)

    @property
    def rows(self) -> int:
        """D."""
        return self.shape[0]

    @property
    def row_elems(self) -> int:
        """K, 1 for a vector."""
        return math.prod(self.shape[1:])

    @property
    def elems(self) -> int:
        """D*K."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Group:
    """One FSDP2 parameter group, in FSDP2's own order (a module's children before its direct parameters).

    repeat: how many groups like this one the model has.
    param_dtype: what the all-gather delivers; `None` (not given) = the parameters' own types.
    reduce_dtype: what gradients are summed in.
    mesh: canonical JSON of the reserved key, "" where it is not given.
    landings: calls of its all-gather whose parameters may be there at a time, 1 or 2; with one, none begins before all ranks are through with the one before.
    """

    name: str
    repeat: int
    params: tuple[Parameter, ...]
    _: KW_ONLY
    param_dtype: Dtype | None = None
    reduce_dtype: Dtype = Dtype.FP32
    mesh: str = ""
    landings: int = LANDINGS

    def __post_init__(self) -> None:
        assert self.params and self.repeat >= 1 and 1 <= self.landings <= LANDINGS, (self.name, self.repeat, self.landings)
        assert len({parameter.name for parameter in self.params}) == len(self.params), self.name

    @property
    def trainable(self) -> tuple[Parameter, ...]:
        """The parameters whose gradients are reduced, in order."""
        return tuple(parameter for parameter in self.params if parameter.requires_grad)

    def gathered_as(self, parameter: Parameter) -> Dtype:
        """What the all-gather delivers a parameter of this group in."""
        return self.param_dtype or parameter.dtype

    @property
    def gather_dtype(self) -> Dtype:
        """What the all-gather delivers, for a group whose all-gather can be planned (one type)."""
        (dtype,) = {self.gathered_as(parameter) for parameter in self.params}
        return dtype

    @property
    def gradient_dtype(self) -> Dtype:
        """What autograd leaves gradients in, for a group whose reduce-scatter can be planned (one type)."""
        (dtype,) = {self.gathered_as(parameter) for parameter in self.trainable}
        return dtype

    @property
    def needs_cast(self) -> bool:
        """Whether the all-gather delivers another type than the shards are stored in."""
        return any(self.gathered_as(parameter) is not parameter.dtype for parameter in self.params)


@dataclass(frozen=True, slots=True)
class Signature:
    """The groups of a model in the file's order; group names may repeat.

    source_name: the file's name without folder and `.json`.
    is_installed: plans are those that `tidec.install` asks for (`inputs/asked.py`).
    about: what the file says beside its groups (model, source, notes, ...), key and canonical JSON text; never hashed.
    """

    groups: tuple[Group, ...]
    source_name: str
    about: tuple[tuple[str, str], ...] = field(default=(), compare=False)
    is_installed: bool = False


def canonical_text(group: Group) -> str:
    """Canonical JSON of what a plan depends on: names, shapes, types and flags in order.

    The group's own name and repeat, tied names and anything about the file are not in it: groups with equal plans have equal
    texts. A param_dtype is in it only through the types it leads to.
    """
    params = [
        {"name": p.name, "shape": list(p.shape), "dtype": p.dtype.value, "gathered_as": group.gathered_as(p).value,
         "requires_grad": p.requires_grad, "shard_dim": p.shard_dim}
        for p in group.params
    ]
    content = {"schema": SCHEMA, "params": params, "reduce_dtype": group.reduce_dtype.value, "mesh": group.mesh}
    if group.landings != LANDINGS:
        content["landings"] = group.landings
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def digest(group: Group) -> str:
    """sha256 of `canonical_text`, 64 hex digits."""
    return hashlib.sha256(canonical_text(group).encode("ascii")).hexdigest()


def load_groups(path: str | os.PathLike[str]) -> Signature:
    """Read a group file (`tidec.group/1`): an object with `params` or `groups`, or a bare list of parameters.

    One group of an object with `params` or of a bare list is named after the file.
    Raises P001 where the file cannot be read; P002 malformed; P003 unknown key; P005 a shape that cannot be sharded.
    """
    return read_groups(read_file(path), file=os.fspath(path))


def read_groups(text: str, *, file: str) -> Signature:
    """Read the text of a group file; file: the name to print, and to name a lone group after. Raises as `load_groups`."""
    document = parse(text, file=file)
    name = os.path.basename(file).removesuffix(".json") or "group"
    if not name.isprintable():
        name = "group"
    root = document.root
    if isinstance(root.value, tuple):
        return Signature((_group(document, name, 1, root, {}),), name)
    given = document.members(root, what="a group file", keys=_FILE_KEYS, group_keys=_GROUP_KEYS)
    if "schema" in given and given["schema"].node.value != SCHEMA:
        raise document.error("P002", f"the schema of a group file is {quoted(SCHEMA)}", line=given["schema"].line, help=f'write "schema": "{SCHEMA}"')
    if ("params" in given) == ("groups" in given):
        raise document.error("P002", f"a group file has {'both' if 'params' in given else 'neither'} params {'and' if 'params' in given else 'nor'} groups",
                             line=root.line, help="give params (one group) or groups (a list of groups)", see=REFERENCE)
    if "params" in given:
        groups = (_group(document, name, 1, given["params"].node, {}),)
    else:
        nodes = document.items(given["groups"].node, what="groups")
        if not nodes:
            raise document.error("P002", "groups is empty", line=given["groups"].line, help="give at least one group")
        groups = tuple(_group_of(document, i, node) for i, node in enumerate(nodes))
        _check_ties_between(document, groups, nodes)
    about = tuple((key, plain_text(given[key].node)) for key in _ABOUT_KEYS if key in given)
    return Signature(groups, name, about, "install" in given and document.flag(given["install"].node, what="install"))


def _group_of(document: Document, i: int, node: Node) -> Group:
    """Entry i of `groups`."""
    given = document.members(node, what=f"group {i}", owner="a group", keys=_GROUP_KEYS)
    name = document.text(given["name"].node, what=f"the name of group {i}") if "name" in given else f"g{i}"
    if "params" not in given:
        raise document.error("P002", f"group {quoted(name)} has no params", line=node.line, help="list its parameters in FSDP2's order", see=REFERENCE)
    repeat = document.integer(given["repeat"].node, what=f"repeat of group {quoted(name)}", low=1) if "repeat" in given else 1
    return _group(document, name, repeat, given["params"].node, given)


def _group(document: Document, name: str, repeat: int, node: Node, given: dict[str, Member]) -> Group:
    """A group from its list of parameters and, where it was written as a group, its other keys."""
    what = f"group {quoted(name)}"
    nodes = document.items(node, what=f"params of {what}")
    if not nodes:
        raise document.error("P002", f"params of {what} is empty", line=node.line, help="list its parameters, or leave the group out")
    params: dict[str, Parameter] = {}
    lines: dict[str, int] = {}
    for i, item in enumerate(nodes):
        parameter, line = _parameter(document, i, item, what)
        if parameter.name in params:
            raise document.error("P002", f"{what} has two parameters {quoted(parameter.name)}", line=line,
                                 reason=f"the other one stands on line {lines[parameter.name]}", help="give every parameter of a group its own name")
        params[parameter.name], lines[parameter.name] = parameter, line
    for parameter in params.values():
        for other in parameter.tied_to:
            if other in params:
                raise document.error("P002", f"{quoted(other)} is tied to {quoted(parameter.name)} and has an entry of its own", line=lines[other],
                                     reason="they are one tensor, which FSDP2 shards once", help=f"delete the entry of {quoted(other)}")
    tied: dict[str, str] = {}
    for parameter in params.values():
        for other in parameter.tied_to:
            if tied.setdefault(other, parameter.name) != parameter.name:
                raise document.error("P002", f"{quoted(parameter.name)} and {quoted(tied[other])} are both tied to {quoted(other)}", line=lines[parameter.name],
                                     reason="they are one tensor, which FSDP2 shards once", help=f"delete the entry of {quoted(parameter.name)}")
    dtypes = {key: _dtype(document, given[key].node, f"{key} of {what}") for key in ("param_dtype", "reduce_dtype") if key in given}
    mesh = plain_text(given["mesh"].node) if "mesh" in given else ""
    landings = document.integer(given["landings"].node, what=f"landings of {what}", low=1, high=LANDINGS) if "landings" in given else LANDINGS
    return Group(name, repeat, tuple(params.values()), mesh=mesh, landings=landings, **dtypes)


def _parameter(document: Document, i: int, node: Node, group: str) -> tuple[Parameter, int]:
    """Entry i of a group's params, and the line to point at when something about it is wrong."""
    # An unknown key is reported with the parameter's name, so the name is looked for before the keys are checked.
    members = node.value.members if isinstance(node.value, Object) else ()
    names = [member.node.value for member in members if member.key == "name" and isinstance(member.node.value, str)]
    what = f"parameter {quoted(names[0])}" if names else f"parameter {i} of {group}"
    given = document.members(node, what=what, owner="a parameter", keys=_PARAMETER_KEYS)
    for key in ("name", "shape", "dtype"):
        if key not in given:
            raise document.error("P002", f"{what} has no {key}", line=node.line, help="a parameter needs name, shape and dtype", see=REFERENCE)
    line = given["name"].line
    name = document.text(given["name"].node, what=f"the name of parameter {i} of {group}")
    dtype = _dtype(document, given["dtype"].node, f"dtype of {what}")
    shape = _shape(document, given["shape"].node, what)
    if math.prod(shape) * dtype.item_bytes > MAX_INT64:
        raise document.error("P005", f"{what} has more bytes than 64 bits count", line=given["shape"].line,
                             reason=f"shape {list(shape)} of {dtype.value}", help="give the shape that the parameter has")
    if "stride" in given:
        _check_stride(document, given["stride"].node, shape, what)
    shard_dim = document.integer(given["shard_dim"].node, what=f"shard_dim of {what}", high=len(shape) - 1) if "shard_dim" in given else 0
    requires_grad = document.flag(given["requires_grad"].node, what=f"requires_grad of {what}") if "requires_grad" in given else True
    tied: tuple[str, ...] = ()
    if "tied_to" in given:
        tied = tuple(document.text(item, what=f"a name in tied_to of {what}") for item in document.items(given["tied_to"].node, what=f"tied_to of {what}"))
        if name in tied or len(set(tied)) < len(tied):
            raise document.error("P002", f"tied_to of {what} names {'the parameter itself' if name in tied else 'one tensor twice'}",
                                 line=given["tied_to"].line, help="list each other name of the tensor once")
    return Parameter(name, shape, dtype, requires_grad, tied, shard_dim), line


def _dtype(document: Document, node: Node, what: str) -> Dtype:
    for dtype in Dtype:
        if node.value == dtype.value:
            return dtype
    raise document.error("P002", f"{what} is {kind_of(node.value)}", line=node.line, help="write one of bf16, fp16, fp32, fp64")


def _shape(document: Document, node: Node, what: str) -> tuple[int, ...]:
    extents = document.items(node, what=f"shape of {what}")
    if not extents:
        raise document.error("P005", f"{what} is a scalar: it has no dimension 0 to shard", line=node.line, reason="FSDP2 refuses it too",
                             help="make it a tensor of one element, shape [1]")
    for extent in extents:
        if isinstance(extent.value, int) and extent.value < 0:
            raise document.error("P005", f"{what} has a negative extent, {extent.value}", line=node.line, help="give the shape that the parameter has")
    return tuple(document.integer(extent, what=f"an extent of {what}") for extent in extents)


def _check_stride(document: Document, node: Node, shape: tuple[int, ...], what: str) -> None:
    """Refuse a parameter whose rows do not lie one after the other (as torch counts: extents of 1 may have any stride)."""
    strides = tuple(document.integer(item, what=f"a stride of {what}", low=-MAX_INT64) for item in document.items(node, what=f"stride of {what}"))
    contiguous = tuple(math.prod(shape[dim + 1:]) for dim in range(len(shape)))
    if len(strides) != len(shape):
        raise document.error("P002", f"stride of {what} has {len(strides)} entries, its shape has {len(shape)}", line=node.line,
                             help="give one stride an extent, or leave stride out")
    if 0 in shape:
        return
    if any(extent != 1 and stride != want for extent, stride, want in zip(shape, strides, contiguous)):
        raise document.error("P005", f"{what} is not contiguous", line=node.line,
                             reason=f"stride {list(strides)}, contiguous is {list(contiguous)}; FSDP2 refuses it too",
                             help="call .contiguous() on the parameter before it is sharded")


def _check_ties_between(document: Document, groups: tuple[Group, ...], nodes: tuple[Node, ...]) -> None:
    """Refuse a tensor that two groups share, as FSDP2 does."""
    owners: dict[str, list[int]] = {}
    for i, group in enumerate(groups):
        for parameter in group.params:
            owners.setdefault(parameter.name, []).append(i)
    for i, group in enumerate(groups):
        for parameter in group.params:
            for other in parameter.tied_to:
                for k in owners.get(other, ()):
                    if k != i:
                        raise document.error(
                            "P002", f"{quoted(other)} of group {quoted(groups[k].name)} is tied to {quoted(parameter.name)} of group {quoted(group.name)}",
                            line=nodes[k].line, reason="FSDP2 refuses a tensor that two groups share (ValueError)",
                            help="shard the modules that share it in one group")
    _check_third_names(document, groups, nodes)


def _check_third_names(document: Document, groups: tuple[Group, ...], nodes: tuple[Node, ...]) -> None:
    """Refuse parameters of two groups that are tied to one name which has no entry: they are one tensor."""
    first: dict[str, tuple[int, Parameter]] = {}
    for i, group in enumerate(groups):
        for parameter in group.params:
            for other in parameter.tied_to:
                k, before = first.setdefault(other, (i, parameter))
                if k != i:
                    raise document.error(
                        "P002", f"{quoted(parameter.name)} of group {quoted(group.name)} and {quoted(before.name)} of group {quoted(groups[k].name)} "
                                f"are both tied to {quoted(other)}",
                        line=nodes[i].line, reason="they are one tensor, and FSDP2 refuses a tensor that two groups share (ValueError)",
                        help="shard the modules that share it in one group; where they are two tensors, write their names in full")
