"""Which groups keep the stock collective, why, and how that is told."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidec.errors import Diagnostic, Level
from tidec.inputs.ask import Collective, StockCause, stock_cause
from tidec.inputs.document import quoted
from tidec.inputs.signature import Group, Signature

_CODE = "P012"


@dataclass(frozen=True, slots=True)
class Kept:
    """A stock collective that a group keeps."""

    group: Group
    collective: Collective
    cause: StockCause


def kept(group: Group) -> tuple[Kept, ...]:
    """The stock collectives of a group, none where all of it is planned."""
    causes = [(c, stock_cause(group, c)) for c in Collective]
    return tuple(Kept(group, collective, cause) for collective, cause in causes if cause is not None)


def stock_fields(cause: StockCause) -> dict[str, str]:
    """The JSON of a cause: code, reason, and the parameter where one is the reason."""
    return {"code": _CODE, "reason": cause.reason, **({"parameter": cause.parameter} if cause.parameter else {})}


def spelt(collective: Collective) -> str:
    """all-gather, reduce-scatter."""
    return collective.value.replace("_", "-")


def stock_notes(signature: Signature) -> tuple[str, ...]:
    """One note a group and reason (P012), the last one with how many groups keep a stock collective and how to see them all."""
    notes: list[str] = []
    for group in signature.groups:
        by_cause: dict[StockCause, list[str]] = {}
        for k in kept(group):
            by_cause.setdefault(k.cause, []).append(spelt(k.collective))
        for cause, collectives in by_cause.items():
            notes.append(str(Diagnostic(_CODE, f"group {quoted(group.name)} keeps the stock {' and '.join(collectives)}", reason=cause.reason, help=cause.help,
                                        level=Level.NOTE)))
    if notes:
        notes[-1] += f"\n  {stock_summary(signature.groups)};  tidec why-not"
    return tuple(notes)


def stock_summary(groups: Sequence[Group]) -> str:
    """How many of the model's groups keep a stock collective, and their part of its bytes; "" where none does."""
    count = sum(g.repeat for g in groups if kept(g))
    if not count:
        return ""
    total = sum(g.repeat for g in groups)
    part, whole = sum(_bytes(g) for g in groups if kept(g)), max(1, sum(map(_bytes, groups)))
    per_mille = (2000 * part + whole) // (2 * whole)
    return f"{count} of {total} groups keep{'s' if count == 1 else ''} a stock collective ({per_mille // 10}.{per_mille % 10} % of the bytes)"


def _bytes(group: Group) -> int:
    return group.repeat * sum(p.elems * p.dtype.item_bytes for p in group.params)
