"""What decided the knobs of a model's groups, told: a table for each set of knobs, and fields for JSON."""
from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import fields

from tidec.commands.tell import short, table
from tidec.inputs.topology import Topology
from tidec.size.rates import rates_of
from tidec.size.solver import Choice

_SHOWN = 4
_WIDTH, _WHY_WIDTH = 120, 100


def choices_text(names: Sequence[str], choices: Sequence[Choice]) -> str:
    """One table for each set of knobs, with the terms of the first group that has it; "" where nothing was decided.

    names: of the groups, one a choice.
    """
    alike: dict[object, list[int]] = {}
    for i, choice in enumerate(choices):
        if choice.terms:
            alike.setdefault(choice.knobs, []).append(i)
    return "\n\n".join(_table([names[i] for i in found], choices[found[0]]) for found in alike.values())


def choice_fields(choice: Choice) -> dict[str, object]:
    """For --json: by knob its value, why, and whether it was set."""
    return {term.name: {"value": int(term.value) if term.value.isdigit() else term.value, "why": term.why, "set": term.is_set} for term in choice.terms}


def rates_text(topology: Topology) -> str:
    """The rates that knobs were chosen by, a line for each place that they come from."""
    rates, by_origin = rates_of(topology), {}
    for f in fields(rates):
        rate = getattr(rates, f.name)
        by_origin.setdefault(rate.origin, []).append(f"{f.name} {float(rate.value):g}")
    lines = (f"rates: {', '.join(found)} ({origin})" for origin, found in by_origin.items())
    return "\n".join(part for line in lines for part in textwrap.wrap(line, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def _table(names: Sequence[str], choice: Choice) -> str:
    shown = [short(name) for name in dict.fromkeys(names)]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    head = f"knobs of {', '.join(shown[:_SHOWN])}{more}" + (f"; why, of {shown[0]}" if len(shown) > 1 else "")
    rows = []
    for term in choice.terms:
        first, *rest = textwrap.wrap(term.why, _WHY_WIDTH, subsequent_indent="  ")
        rows += [(term.name, term.value, first), *(("", "", part) for part in rest)]
    return head + "\n" + table(("knob", "value", "why"), rows, right=(1,))
