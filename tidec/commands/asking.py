"""From the words of the command line to what is asked."""
from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.capability import Lowering, choose_lowering
from tidec.inputs.document import quoted
from tidec.inputs.knobs import Settings, read_settings
from tidec.inputs.signature import Signature, load_groups
from tidec.inputs.topology import Topology, parse_topology

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Asked:
    """A model on a topology, with the knobs that are set and the lowering of all its plans."""

    topology: Topology
    signature: Signature
    settings: Settings
    lowering: Lowering


def read_asked(*, topo: str, group: str, settings: tuple[str, ...] = (), capability: str | None = None) -> Asked:
    """Read both inputs and the settings; `None` = no capability was asked for. Raises P001..P006."""
    topology = parse_topology(topo)
    signature = load_groups(group)
    return Asked(topology, signature, read_settings(settings, topology.lanes), choose_lowering(topology, capability))


def read_budget(text: str) -> int:
    """Bytes of a budget in GiB, such as 80 or 0.5; at least one. Raises P001."""
    try:
        budget = Fraction(text)
    except (ValueError, ZeroDivisionError):
        budget = Fraction(0)
    if not (budget > 0 and len(text) < 20 and "/" not in text):
        raise TidecError(Diagnostic("P001", f"a budget of {quoted(text)} is no number of GiB", help="write for example --budget 80"))
    if budget * GIB < 1:
        raise TidecError(Diagnostic("P001", f"a budget of {quoted(text)} GiB is less than a byte", help="write for example --budget 80, or leave it out"))
    return int(budget * GIB)


def read_count(text: str, *, option: str, low: int, high: int) -> int:
    """An integer option. Raises P001 where it is none or lies outside low..high."""
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and low <= int(text) <= high):
        raise TidecError(Diagnostic("P001", f"{option} is {quoted(text)}, not a number from {low} to {high}", help=f"write {option} N with N in {low}..{high}"))
    return int(text)


def read_number(text: str, *, option: str) -> float:
    """A finite number. Raises P001."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TidecError(Diagnostic("P001", f"{option} is {quoted(text)}, which is no number", help=f"write for example {option} 0.25"))
    return value


def read_seconds(text: str, *, option: str) -> float:
    """A time to wait, from a millisecond to a day. Raises P001."""
    value = read_number(text, option=option)
    if not 0.001 <= value <= 86400:
        raise TidecError(Diagnostic("P001", f"{option} is {quoted(text)}", help="write seconds from 0.001 to 86400"))
    return value
