"""The checker's own reading of index expressions and loops, straight from JSON: values of one point, or of a whole column of points at once.

An expression is an int, a bool, the name of a symbol, or a list: operator, arguments. A symbol stands for a number or for a column, which is a
list of numbers, one a row of a table. Nothing here is compiled, and nothing is shared with `index/`.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat

Value = int | bool | list

MAX_ROWS = 400_000
WORDS = ("all", "others")


class TooLarge(Exception):
    """A table or a graph with more rows than the checker takes on."""


def _top2(x: int) -> int:
    return 1 << (x.bit_length() - 1) if x > 0 else 0


_TWO: dict[str, Callable] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "<": operator.lt, "<=": operator.le, "==": operator.eq,
    "wrap": lambda a, b: a - b if a >= b else a, "back": lambda a, b: a + b if a < 0 else a,
}
_ONE: dict[str, Callable] = {"not": operator.not_, "top2": _top2}
_MANY: dict[str, Callable] = {"and": operator.and_, "or": operator.or_}


def _apply(op: str, values: list[Value]) -> Value:
    """An operator other than `where` over numbers and columns. Raises KeyError for one that does not exist, TypeError for a wrong number of arguments."""
    if op in _ONE:
        (a,) = values
        return list(map(_ONE[op], a)) if type(a) is list else _ONE[op](a)
    if op in _TWO:
        a, b = values
        return _both(_TWO[op], a, b)
    result, f = values[0], _MANY[op]
    for b in values[1:]:
        result = _both(f, result, b)
    return result


def _both(f: Callable, a: Value, b: Value) -> Value:
    if type(a) is list:
        return list(map(f, a, b if type(b) is list else repeat(b)))
    return list(map(f, repeat(a), b)) if type(b) is list else f(a, b)


def read(x: object, env: dict[str, int]) -> int | bool:
    """The value of an expression where every symbol is a number. Raises KeyError, TypeError, ValueError or IndexError for what is not one."""
    kind = type(x)
    if kind is int or kind is bool:
        return x
    if kind is str:
        return env[x]
    if x[0] == "where":
        _, cond, then, other = x
        return read(then if read(cond, env) else other, env)
    return _apply(x[0], [read(a, env) for a in x[1:]])


def trips(loop: dict, low: int, high: int) -> range | list[int]:
    """The indices of a loop between two bounds, in order. Raises ValueError where it would never end, TooLarge where it is too long."""
    if loop["step"] != "doubling":
        if high - low > MAX_ROWS:
            raise TooLarge(f"the loop over {loop['name']} runs {high - low} times")
        return range(low, high)
    if low < 1 and low < high:
        raise ValueError(f"the loop over {loop['name']} doubles from {low}")
    found = []
    while low < high:
        found.append(low)
        low *= 2
    return found


@dataclass(frozen=True, slots=True)
class Family:
    """An op under its loops and conditions. places: where each of these stands in the body around it, outermost first, then the op."""

    op: dict
    path: tuple[dict, ...]
    places: tuple[int, ...]

    @property
    def position(self) -> list:
        """Expressions whose values are the place in the common order of issue: they compare as tuples, across families too."""
        terms: list = []
        for place, item in zip(self.places, self.path):
            terms += [place, item["name"]] if item["is"] == "loop" else [place]
        return [*terms, self.places[-1]]


def families(body: list, path: tuple = (), places: tuple = ()) -> Iterator[Family]:
    """Every op of a program's body, in the order of the text."""
    for i, item in enumerate(body):
        if item["is"] == "op":
            yield Family(item, path, (*places, i))
        else:
            yield from families(item["body"], (*path, item), (*places, i))


class Node:
    """An operator over nodes, names and numbers; equal ones of one program are one object."""

    __slots__ = ("op", "args")

    def __init__(self, op: str, args: tuple):
        self.op, self.args = op, args


class Trees:
    """Expressions of one program, so that a table reads equal ones only once. The program outlives it and does not change."""

    def __init__(self) -> None:
        self._nodes: dict[tuple, Node] = {}
        self._seen: dict[int, Node] = {}     # by the list's own identity: bounds of a loop are read for every op in it

    def node(self, x: list) -> Node:
        found = self._seen.get(id(x))
        if found is None:
            # NOTE: True == 1 as a key, so truth values are told apart by their text, which is no name.
            op, *args = [self.node(a) if type(a) is list else f"={a}" if type(a) is bool else a for a in x]
            key = (op, *args)
            found = self._nodes.get(key)
            if found is None:
                found = self._nodes[key] = Node(op, key[1:])
            self._seen[id(x)] = found
        return found


class Table:
    """The points under some loops and conditions: a value or a column for every symbol, in the order of issue.

    env: the symbols outside all loops.  lanes: the lanes that loops over lanes take; empty = all of them.
    """

    def __init__(self, trees: Trees, env: dict[str, Value], lanes: Iterable[int] = (), count: int = 1):
        self.count = count
        self._trees, self._lanes = trees, tuple(lanes)
        self._env = env
        self._known: dict[Node | str, Value] = {"=True": True, "=False": False, **env}
        self._inside: dict[int, Table] = {}

    def under(self, path: Iterable[dict]) -> Table:
        """The points under more loops and conditions, each made once."""
        table = self
        for item in path:
            found = table._inside.get(id(item))
            if found is None:
                found = table._inside[id(item)] = table._filter(item["cond"]) if item["is"] == "when" else table._expand(item)
            table = found
        return table

    def read(self, x: object) -> Value:
        """The value of an expression: a number, or a column."""
        if type(x) is str:
            return self._env[x]
        return self._read(self._trees.node(x)) if type(x) is list else x

    def column(self, x: object) -> list:
        """The value of an expression as a column; `all` and `others` stay words."""
        value = x if type(x) is str and x in WORDS else self.read(x)
        return value if type(value) is list else [value] * self.count

    def rows(self, expressions: list, *, names: tuple[str, ...] = ()) -> list[tuple]:
        """One tuple a point: the names, then the values."""
        values = [x if type(x) is str and x in WORDS else self.read(x) for x in expressions]
        columns = [v if type(v) is list else repeat(v, self.count) for v in (*names, *values)]
        return list(zip(*columns)) if columns else [()] * self.count

    def _read(self, x: Node | str | int) -> Value:
        if type(x) is int:
            return x
        found = self._known.get(x)
        if found is None:
            if type(x) is str:
                raise KeyError(x)
            if x.op == "where":
                found = self._where(*x.args)
            else:
                found = _apply(x.op, [self._read(a) for a in x.args])
            self._known[x] = found
        return found

    def _where(self, cond: object, then: object, other: object) -> Value:
        chosen = self._read(cond)
        if type(chosen) is not list:
            return self._read(then if chosen else other)
        a, b = self._read(then), self._read(other)
        return [x if c else y for c, x, y in zip(chosen, a if type(a) is list else repeat(a), b if type(b) is list else repeat(b))]

    def _filter(self, cond: object) -> Table:
        keep = [i for i, c in enumerate(self.column(cond)) if c]
        return self if len(keep) == self.count else self._take(keep)

    def _expand(self, loop: dict) -> Table:
        low, high = self.read(loop["lo"]), self.read(loop["hi"])
        if type(low) is list or type(high) is list:
            rows = [trips(loop, a, b) for a, b in zip(self.column(loop["lo"]), self.column(loop["hi"]))]
        else:
            rows = [trips(loop, low, high)] * self.count
        if self._lanes and loop["over_lanes"]:
            rows = [[x for x in self._lanes if x in row] for row in rows]
        found = list(chain.from_iterable(rows))
        if len(found) > MAX_ROWS:
            raise TooLarge(f"more than {MAX_ROWS} points under the loop over {loop['name']}")
        return self._take(list(chain.from_iterable(map(repeat, range(self.count), map(len, rows)))), {loop["name"]: found})

    def _take(self, rows: list[int], more: dict[str, Value] = {}) -> Table:
        env = {name: [value[i] for i in rows] if type(value) is list else value for name, value in self._env.items()}
        return Table(self._trees, env | more, self._lanes, len(rows))
