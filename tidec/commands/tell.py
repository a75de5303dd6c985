"""How numbers and tables are told to people."""
from __future__ import annotations

from collections.abc import Sequence

_MAX_NAME = 40


def count_text(count: int, noun: str) -> str:
    """1 group, 82 groups, 1,024 ranks."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith(("s", "ch", "x")) else "s")


def short(name: str) -> str:
    """A name as it stands in a table: cut where it is long."""
    return name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 3] + "..."


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Columns two spaces apart, each as wide as its widest cell; the columns in `right` are set right; no trailing spaces."""
    lines = [tuple(head), *map(tuple, rows)]
    assert all(len(line) == len(head) for line in lines)
    widths = [max(len(line[c]) for line in lines) for c in range(len(head))]
    return "\n".join("  ".join(cell.rjust(w) if c in right else cell.ljust(w) for c, (cell, w) in enumerate(zip(line, widths))).rstrip() for line in lines)
