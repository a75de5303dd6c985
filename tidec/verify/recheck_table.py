"""The op table of one plan: the values of every op, as one rank issues it in one call, ready to be compared with closed forms.

M nodes, n node, j lane, e call.
"""
from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest

from tidec.verify.recheck_index import Family, Table, Trees, families
from tidec.verify.recheck_layout import Facts
from tidec.verify.recheck_words import refuted

# Ops that move nothing: what they order is the graph's and the theorems' business.
ORDERING = ("wait", "signal", "join")
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


class Ops:
    """All ops of a program that move or name memory, by kind and by what blocks they are between.

    point: the rank (n, j) and the call e.  lanes: the lanes that loops over lanes take where `rows` is told so; empty = all.
    """

    def __init__(self, facts: Facts, point: tuple[int, int, int], lanes: tuple[int, ...] = ()):
        trees, env = Trees(), dict(zip(("M", "n", "j", "e"), (facts.nodes, *point)))
        self._facts, self._all = facts, Table(trees, env)
        self._some = Table(trees, env, lanes) if lanes else self._all
        blocks = {b["name"]: b["block"] for b in facts.program["buffers"]}
        self._found: dict[tuple, list[Family]] = {}
        for f in families(facts.program["body"]):
            if f.op["kind"] not in ORDERING:
                between = tuple(blocks[c["buffer"]] for c in (*f.op["reads"], *f.op["writes"]))
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

    def rows(self, *what: str, ask: Ask = accesses, all_lanes: bool = True) -> list[tuple]:
        """The values of every such op, in the order of the text, then of issue: the buffers' names, then what `ask` names."""
        result = []
        for f in self.of(*what):
            names = tuple(c["buffer"] for c in (*f.op["reads"], *f.op["writes"]))
            table = (self._all if all_lanes else self._some).under(f.path)
            result += table.rows(ask(f.op), names=names)
        return result

    def placed(self, f: Family, expressions: list) -> list[tuple[tuple, tuple]]:
        """Of every point of a family: the values, and its place in the order of issue."""
        table = self._all.under(f.path)
        return list(zip(table.rows(expressions), table.rows(f.position)))


def compare(facts: Facts, code: str, what: str, found: list[tuple], wanted: list[tuple]) -> None:
    """Equal row by row. Raises the code with the first row that differs."""
    if found == wanted:
        return
    for i, (a, b) in enumerate(zip_longest(found, wanted)):
        if a != b:
            lines = (f"number {i} of them is {_row(a)}", f"the closed form gives {_row(b)}")
            raise refuted(code, facts.file, f"a {what} is not where the collective has one", example=lines)


def _row(row: tuple | None) -> str:
    return "missing" if row is None else " ".join(map(str, row))
