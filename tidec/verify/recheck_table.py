"""The op table of one plan: the values of every op, as one rank issues it in one call, ready to be compared with closed forms.

M nodes, n node, j lane, e call.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest

from tidec.verify.recheck_index import ORDERING, Family, Table, Value, families, rows_of
from tidec.verify.recheck_layout import Facts
from tidec.verify.recheck_words import refuted

Ask = Callable[[dict], list]


def cell(c: dict) -> list:
    """The expressions of an access: its key, node, lane and call."""
    return [*c["key"], c["node"], c["lane"], c["call"]]


def accesses(op: dict) -> list:
    """The expressions of everything that an op reads, then writes."""
    return [x for c in (*op["reads"], *op["writes"]) for x in cell(c)]


def transfer(op: dict) -> list:
    """The expressions of a put: where from, where to, in which uses, over which context, and which promises it keeps."""
    (source,), (target,) = op["reads"], op["writes"]
    kept = [x for r in op["raises"] for x in (r["event"] == "then", *r["promise"]["key"], r["promise"]["node"], r["promise"]["lane"], r["promise"]["call"])]
    return [*cell(source), *source["use"], *cell(target), *target["use"], op["context"], *kept]


@dataclass(slots=True)
class Columns:
    """Some rows, column after column: a list, or one value that is the same in all rows. What is equal as columns is equal row by row."""

    count: int
    values: list[Value | str]

    def rows(self) -> list[tuple]:
        """One tuple a row."""
        return rows_of(self.values, self.count)

    def is_equal(self, other: Columns) -> bool:
        """The same rows in the same order. A no may be wrong where the columns are of another number and there are no rows."""
        return self.count == other.count and len(self.values) == len(other.values) and all(map(self._is_same, self.values, other.values))

    def _is_same(self, a: Value | str, b: Value | str) -> bool:
        if type(a) is type(b):
            return a == b
        if type(a) is list:
            return a.count(b) == len(a)
        return b.count(a) == len(b) if type(b) is list else a == b


def repeated(column: list, times: int) -> list:
    """Every value as many times, one after the other."""
    return column if times == 1 else [x for x in column for _ in range(times)]


def below(parts: list[Columns]) -> Columns:
    """The rows of all parts, one after the other."""
    parts = [part for part in parts if part.count]
    if len(parts) == 1:
        return parts[0]
    values: list[Value | str] = []
    for column in zip_longest(*(part.values for part in parts)):      # a column that a part lacks is of None, which equals nothing
        values.append([])
        for value, part in zip(column, parts):
            values[-1] += value if type(value) is list else [value] * part.count
    return Columns(sum(part.count for part in parts), values)


class Ops:
    """All ops of a program that move or name memory, by kind and by what blocks they are between.

    point: the rank (n, j) and the call e.  lanes: the lanes that loops over lanes take where `rows` is told so; empty = all.
    """

    def __init__(self, facts: Facts, point: tuple[int, int, int], lanes: tuple[int, ...] = ()):
        self._facts, self._lanes = facts, lanes
        self._table = Table(dict(zip(("M", "n", "j", "e"), (facts.nodes, *point))))
        blocks = {b["name"]: b["block"] for b in facts.program["buffers"]}
        self._found: dict[tuple, list[Family]] = {}
        for f in families(facts.program["body"], ORDERING):
            between = [blocks[c["buffer"]] for c in (*f.op["reads"], *f.op["writes"])]
            self._found.setdefault((f.op["kind"], *between), []).append(f)

    def check_kinds(self, *known: tuple[str, ...]) -> None:
        """Every op is of a kind that the collective has. Raises V105."""
        for kind, *between in self._found:
            if (kind, *between) not in known:
                raise refuted("V105", self._facts.file, f"a {kind} between {' and '.join(between)} blocks is no part of this collective")

    def of(self, *what: str) -> list[Family]:
        """The families of a kind between such blocks."""
        return self._found.get(what, [])

    def buffers(self, *what: str) -> set[tuple[str, ...]]:
        """The buffers that ops of a kind are between."""
        return {tuple(c["buffer"] for c in (*f.op["reads"], *f.op["writes"])) for f in self.of(*what)}

    def columns(self, *what: str, ask: Ask = accesses, all_lanes: bool = True) -> Columns:
        """The values of every such op, in the order of the text, then of issue: the buffers' names, then what `ask` names."""
        parts = []
        for f in self.of(*what):
            table = self._table.under(f.path, () if all_lanes else self._lanes)
            names = [c["buffer"] for c in (*f.op["reads"], *f.op["writes"])]
            parts.append(Columns(table.count, names + table.values(ask(f.op)) if table.count else []))
        return below(parts)

    def rows(self, *what: str, ask: Ask = accesses, all_lanes: bool = True) -> list[tuple]:
        """The same as tuples."""
        return self.columns(*what, ask=ask, all_lanes=all_lanes).rows()

    def issued(self, *what: str, ask: Ask = accesses) -> list[tuple]:
        """The same, in the order of issue."""
        found: list[tuple[tuple, tuple]] = []
        for f in self.of(*what):
            names = [c["buffer"] for c in (*f.op["reads"], *f.op["writes"])]
            found += [(place, (*names, *row)) for row, place in self.placed(f, ask(f.op))]
        return [row for _, row in sorted(found)]

    def placed(self, f: Family, expressions: list) -> list[tuple[tuple, tuple]]:
        """Of every point of a family: the values, and its place in the order of issue."""
        table = self._table.under(f.path)
        return list(zip(table.rows(expressions), table.rows(f.position)))


def compare(facts: Facts, code: str, what: str, found: Columns, wanted: Columns, *, by: Callable[[tuple], tuple] | None = None) -> None:
    """Equal row by row, or once both are sorted `by` something. Raises the code with the first row that differs."""
    if not found.is_equal(wanted):
        compare_rows(facts, code, what, sorted(found.rows(), key=by) if by else found.rows(), wanted.rows())


def compare_rows(facts: Facts, code: str, what: str, found: list[tuple], wanted: list[tuple]) -> None:
    """Equal row by row. Raises the code with the first row that differs."""
    if found == wanted:
        return
    for i, (a, b) in enumerate(zip_longest(found, wanted)):
        if a != b:
            lines = (f"number {i} of them is {_row(a)}", f"the closed form gives {_row(b)}")
            raise refuted(code, facts.file, f"a {what} is not where the collective has one", example=lines)


def _row(row: tuple | None) -> str:
    return "missing" if row is None else " ".join(map(str, row))
