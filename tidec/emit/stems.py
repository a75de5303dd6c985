"""What the files and namespaces of a bundle are called, for groups of any name."""
from __future__ import annotations

import re
from collections.abc import Sequence

from tidec.inputs.ask import Collective
from tidec.plan.ir import Plan

_MAX_STEM = 64
_SHORT = {Collective.ALL_GATHER: "ag", Collective.REDUCE_SCATTER: "rs"}


def stems(plans: Sequence[Plan]) -> tuple[str, ...]:
    """A file name without its ending for each plan: `<group>.<ag|rs>`, after the first group that has the plan.

    Letters, digits, `-` and `_` of the name are kept, everything else is `_`; names that then differ in case at most get a number.
    """
    taken: set[str] = set()
    result = []
    for plan in plans:
        group = re.sub(r"[^A-Za-z0-9_-]+", "_", plan.groups[0] if plan.groups else "").strip("_-")[:_MAX_STEM] or "group"
        stem = next(s for s in (f"{group}{f'-{i}' if i else ''}.{_SHORT[plan.collective]}" for i in (0, *range(2, len(plans) + 2))) if s.lower() not in taken)
        taken.add(stem.lower())
        result.append(stem)
    return tuple(result)


def namespaces(names: Sequence[str]) -> tuple[str, ...]:
    """A C++ name for each stem; none has two underscores in a row, and no two are equal."""
    taken: set[str] = set()
    result = []
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
        stem = stem if stem[:1].isalpha() else f"g{stem}"
        found = next(s for s in (stem, *(f"{stem}_n{i}" for i in range(2, len(names) + 2))) if s not in taken)
        taken.add(found)
        result.append(found)
    return tuple(result)
