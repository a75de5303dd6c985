"""What is asked: one group on one topology, how it is lowered, and whether it can be planned at all."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from tidec.errors import Diagnostic, Level, TidecError
from tidec.inputs.capability import Lowering
from tidec.inputs.document import quoted
from tidec.inputs.knobs import Knobs, least_outbox, too_small_outbox
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import Topology

MAX_TRAINABLE = 256
SUM_IN_FP32 = "set reduce_dtype=torch.float32 in the MixedPrecisionPolicy"


class Collective(Enum):
    """The two collectives of a group."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"


class Mode(Enum):
    """Where gradients lie while they are reduced: in autograd's storage, or in a vacated all-gather slot."""

    IN_PLACE = "in_place"
    SLOT_REUSE = "slot_reuse"


def read_mode(text: str) -> Mode:
    """The mode of that name. Raises P001 where there is none."""
    for mode in Mode:
        if text == mode.value:
            return mode
    # From Python anything may come here.
    given = quoted(text) if isinstance(text, str) else repr(text)
    raise TidecError(Diagnostic("P001", f"there is no mode {given}", help=f"one of: {', '.join(m.value for m in Mode)}"))


@dataclass(frozen=True, slots=True)
class Ask:
    """Everything a plan depends on.

    Guaranteed: `knobs.cast` is true or false, and an outbox is large enough for the rounds of this topology.
    Raises P006 where the knobs do not fit the topology or the group.
    """

    topology: Topology
    group: Group
    lowering: Lowering
    knobs: Knobs
    mode: Mode = Mode.IN_PLACE

    def __post_init__(self) -> None:
        knobs, lanes = self.knobs, self.topology.lanes
        if not 1 <= knobs.W <= lanes:
            raise TidecError(Diagnostic("P006", f"W={knobs.W} is outside 1..{lanes}, the lane count", help=f"write W=N with N in 1..{lanes}"))
        if isinstance(knobs.n_out, int) and knobs.n_out < least_outbox(knobs, self.topology.nodes):
            raise too_small_outbox(knobs, self.topology.nodes)
        if knobs.cast is None:
            object.__setattr__(self, "knobs", replace(knobs, cast=self.group.needs_cast))
        elif not knobs.cast and self.group.needs_cast:
            p = next(p for p in self.group.params if self.group.gathered_as(p) is not p.dtype)
            raise TidecError(Diagnostic("P006", f"cast=0 cannot hold for group {quoted(self.group.name)}",
                                        reason=f"parameter {quoted(p.name)} is stored in {p.dtype.value} and gathered in {self.group.gathered_as(p).value}",
                                        help="leave cast out"))


@dataclass(frozen=True, slots=True)
class StockCause:
    """Why a group keeps FSDP2's own collective.

    parameter: the first one that is the reason, "" where it is the whole group.  help: what to do about it, "" where nothing is known.
    """

    reason: str
    parameter: str = ""
    help: str = field(default="", compare=False)


def stock_cause(group: Group, collective: Collective) -> StockCause | None:
    """Why tidec has no plan for this collective of this group; `None` = it has one.

    Both collectives: a parameter that is not sharded on dimension 0, trainable parameters of different types (FSDP2
    stops there too), more than 256 trainable parameters, a mesh, no elements.
    All-gather only: parameters delivered in different types, a cast from or to fp64.
    Reduce-scatter only: nothing trainable, another reduce_dtype than fp32, fp64 gradients.
    Source: DESIGN section 8; paper section 2.5.
    """
    return _cause_of_both(group) or (_cause_of_gather(group) if collective is Collective.ALL_GATHER else _cause_of_reduce(group))


def stock_reason(group: Group, collective: Collective) -> Diagnostic | None:
    """The note that says why a group keeps this stock collective (P012); `None` = it is planned."""
    cause = stock_cause(group, collective)
    if cause is None:
        return None
    return Diagnostic("P012", f"group {quoted(group.name)} keeps the stock {collective.value.replace('_', '-')}", reason=cause.reason,
                      help=cause.help or "tidec why-not lists every such group; --stock-ok makes the exit code 0", level=Level.NOTE)


def _cause_of_both(group: Group) -> StockCause | None:
    for p in group.params:
        if p.shard_dim != 0:
            return StockCause(f"parameter {quoted(p.name)} is sharded on dimension {p.shard_dim}; tidec plans dimension 0", p.name)
    trainable = group.trainable
    for p in trainable:
        if p.dtype is not trainable[0].dtype:
            return StockCause(
                f"trainable parameters have different types: {_typed(trainable[0])}, {_typed(p)}; "
                "FSDP2 of torch 2.14 and before stops at its first forward pass (AssertionError: FSDP expects uniform original parameter dtype)", p.name,
                "give the fp32 norms a group of their own (fully_shard them apart), or store all in one type")
    if len(trainable) > MAX_TRAINABLE:
        p = trainable[MAX_TRAINABLE]
        return StockCause(f"it has more trainable parameters than a plan can hold: {len(trainable)} > {MAX_TRAINABLE}, from {quoted(p.name)} on", p.name)
    if group.mesh:
        return StockCause(f"its mesh is {group.mesh}; tidec plans groups that all ranks share")
    if not any(p.elems for p in group.params):
        return StockCause("its parameters have no elements: there is nothing to move", group.params[0].name)
    return None


def _cause_of_gather(group: Group) -> StockCause | None:
    first = group.params[0]
    for p in group.params:
        if group.gathered_as(p) is not group.gathered_as(first):
            return StockCause(f"parameters are gathered in different types: {_typed(first)}, {_typed(p)}; set param_dtype to gather them in one", p.name)
    for p in group.params:
        to = group.gathered_as(p)
        if to is not p.dtype and Dtype.FP64 in (to, p.dtype):
            return StockCause(f"parameter {quoted(p.name)} is cast from {p.dtype.value} to {to.value}; tidec casts between bf16, fp16 and fp32", p.name)
    return None


def _cause_of_reduce(group: Group) -> StockCause | None:
    if not group.trainable:
        return StockCause("it has no trainable parameter: there is nothing to reduce", group.params[0].name)
    if group.reduce_dtype is not Dtype.FP32:
        return StockCause(f"its reduce_dtype is {group.reduce_dtype.value}; tidec sums in fp32", help=SUM_IN_FP32)
    if not any(p.elems for p in group.trainable):
        return StockCause("its trainable parameters have no elements: there is nothing to reduce", group.trainable[0].name)
    if group.gradient_dtype is Dtype.FP64:
        p = group.trainable[0]
        return StockCause(f"the gradient of parameter {quoted(p.name)} is fp64; tidec sums in fp32", p.name)
    return None


def _typed(p: Parameter) -> str:
    return f"{quoted(p.name)} is {p.dtype.value}"
