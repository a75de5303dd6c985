"""The groups of a model under FSDP2 as plans of them are asked for, and which of them have one plan."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tidec.inputs.ask import Collective, stock_cause
from tidec.inputs.signature import Dtype, Group, Signature

Moved = tuple[tuple[int, int, Dtype, bool], ...]


def moved(group: Group) -> Moved:
    """What plans move of a group: rows, elements of a row, type and whether it is trained, a parameter. Groups in which that is equal have one plan under FSDP2, whatever their names."""
    return tuple((p.rows, p.row_elems, group.gathered_as(p), p.requires_grad) for p in group.params)


def asked_of(signature: Signature) -> tuple[Group, ...]:
    """The groups that plans are made of: those of the signature, in its order, as they are or as `tidec.install` asks for them, and then those of kept gradients behind them."""
    return with_kept(as_asked(signature.groups)) if signature.is_installed else signature.groups


def as_asked(groups: Sequence[Group]) -> tuple[Group, ...]:
    """The groups of a model, each with the plans that suit FSDP2.

    Shards come packed in the type that they are gathered in, so that no plan casts. A group that has its plan to itself gets one landing: FSDP2 has a group
    unsharded once at a time, so that a second one would lie idle.
    """
    num = Counter(m for g in groups for m in (moved(g),) * g.repeat)
    return tuple(
        replace(g, landings=1 if num[moved(g)] == 1 else g.landings, params=tuple(replace(p, dtype=g.gathered_as(p)) for p in g.params)) for g in groups)


def as_kept(group: Group) -> Group:
    """The group as its gradients are where FSDP2 keeps them over several backward passes: in fp32."""
    return replace(group, name=f"{group.name}.kept", param_dtype=None, params=tuple(replace(p, dtype=Dtype.FP32) for p in group.params))


def with_kept(groups: Sequence[Group]) -> tuple[Group, ...]:
    """The groups, and those of which kept gradients need a plan of their own."""
    reduced = [g for g in groups if stock_cause(g, Collective.REDUCE_SCATTER) is None]
    return (*groups, *(as_kept(g) for g in reduced if g.gradient_dtype is not Dtype.FP32))
