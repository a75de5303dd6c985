"""The checker's own reading of index expressions and loops, straight from JSON: values of one point, or of a whole column of points at once.

An expression is an int, a bool, the name of a symbol, or a list: operator, arguments. A symbol stands for a number or for a column, which is a
list of numbers, one a row of a table. Nothing here is compiled, and nothing is shared with `index/`.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from itertools import chain, repeat
from typing import NamedTuple

Value = int | bool | list

MAX_ROWS = 400_000
WORDS = ("all", "others")


class TooLarge(Exception):
    """A table or a graph with more rows than the checker takes on."""


def _top2(x: int) -> int:
    return 1 << (x.bit_length() - 1) if x > 0 else 0


def _one(f: Callable, a: Value) -> Value:
    return list(map(f, a)) if type(a) is list else f(a)


def _two(f: Callable, a: Value, b: Value) -> Value:
    if type(a) is list:
        return list(map(f, a, b if type(b) is list else repeat(b)))
    return list(map(f, repeat(a), b)) if type(b) is list else f(a, b)


def _wrap(a: Value, m: Value) -> Value:
    if type(a) is list and type(m) is int:
        return [x - m if x >= m else x for x in a]
    return _two(lambda x, y: x - y if x >= y else x, a, m)


def _back(a: Value, m: Value) -> Value:
    if type(a) is list and type(m) is int:
        return [x + m if x < 0 else x for x in a]
    return _two(lambda x, y: x + y if x < 0 else x, a, m)


def _all(f: Callable, *values: Value) -> Value:
    return reduce(partial(_two, f), values)


def _where(cond: Value, then: Value, other: Value) -> Value:
    if type(cond) is not list:
        return then if cond else other
    a, b = (x if type(x) is list else repeat(x) for x in (then, other))
    return [x if c else y for c, x, y in zip(cond, a, b)]


# Of every operator: over numbers and columns, and how many arguments it takes; 0 = any number.
_OPERATORS: dict[str, tuple[Callable, int]] = {
    **{name: (partial(_two, f), 2) for name, f in {
        "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "<": operator.lt, "<=": operator.le, "==": operator.eq}.items()},
    "wrap": (_wrap, 2), "back": (_back, 2), "not": (partial(_one, operator.not_), 1), "top2": (partial(_one, _top2), 1),
    "and": (partial(_all, operator.and_), 0), "or": (partial(_all, operator.or_), 0), "where": (_where, 3),
}


def _operator(name: object, num_args: int) -> Callable:
    """Raises KeyError for an operator that does not exist, ValueError for a wrong number of arguments."""
    f, wanted = _OPERATORS[name]
    if num_args != (wanted or max(1, num_args)):
        raise ValueError(f"{name} has {num_args} arguments")
    return f


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
    return _operator(x[0], len(x) - 1)(*[read(a, env) for a in x[1:]])


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


class Family(NamedTuple):
    """An op under its loops and conditions. places: where each of these stands in the body around it, outermost first, then the op."""

    op: dict
    path: tuple
    places: tuple

    @property
    def position(self) -> list:
        """Expressions whose values are the place in the common order of issue: they compare as tuples, across families too."""
        terms: list = []
        for place, item in zip(self.places, self.path):
            terms += [place, item["name"]] if item["is"] == "loop" else [place]
        return [*terms, self.places[-1]]


def families(body: list, without: tuple[str, ...] = ()) -> list[Family]:
    """Every op of a program's body, in the order of the text, but for those of some kinds."""
    found: list[Family] = []
    _find(body, (), (), without, found)
    return found


def _find(body: list, path: tuple, places: tuple, without: tuple[str, ...], found: list[Family]) -> None:
    for i, item in enumerate(body):
        if item["is"] != "op":
            _find(item["body"], (*path, item), (*places, i), without, found)
        elif not without or item["kind"] not in without:
            found.append(Family(item, path, (*places, i)))


class Node:
    """An operator over nodes, names and numbers; equal ones of one program are one object. names: of the symbols in it, a bit each."""

    __slots__ = ("value", "args", "names")

    def __init__(self, value: Callable, args: tuple, names: int):
        self.value, self.args, self.names = value, args, names


# NOTE: True == 1 as a key, so truth values are nodes.
_TRUTH = {True: Node(lambda: True, (), 0), False: Node(lambda: False, (), 0)}


class Trees:
    """Expressions of one program, so that a table reads equal ones only once. The program outlives it and does not change."""

    def __init__(self) -> None:
        self._nodes: dict[tuple, Node] = {}
        self._seen: dict[int, Node] = {}     # by the list's own identity, of whole expressions: bounds of a loop are read for every op in it
        self._bits: dict[str, int] = {}

    def bit(self, name: str) -> int:
        """The bit of a symbol."""
        return self._bits.setdefault(name, 1 << len(self._bits))

    def node(self, x: list) -> Node:
        """The one node of an expression."""
        found = self._seen.get(id(x))
        if found is None:
            found = self._seen[id(x)] = self._node(x)
        return found

    def _node(self, x: list) -> Node:
        if len(x) == 3:
            op, a, b = x
            if type(a) is list:
                a = self._node(a)
            elif type(a) is bool:
                a = _TRUTH[a]
            if type(b) is list:
                b = self._node(b)
            elif type(b) is bool:
                b = _TRUTH[b]
            key = (op, a, b)
        else:
            key = (x[0], *[self._node(a) if type(a) is list else _TRUTH[a] if type(a) is bool else a for a in x[1:]])
        found = self._nodes.get(key)
        if found is None:
            names = 0
            for a in key[1:]:
                names |= a.names if type(a) is Node else self.bit(a) if type(a) is str else 0
            found = self._nodes[key] = Node(_operator(key[0], len(key) - 1), key[1:], names)
        return found


class Table:
    """The points under some loops and conditions: a value or a column for every symbol, in the order of issue.

    env: the symbols outside all loops.  lanes: the lanes that loops over lanes take; empty = all of them.
    What does not change in a loop is read outside of it and repeated.
    """

    def __init__(self, trees: Trees, env: dict[str, Value], lanes: tuple[int, ...] = (), count: int = 1):
        self.count = count
        self._trees, self._lanes = trees, lanes
        self._known: dict[Node | str, Value] = dict(env)
        # fixed: symbols that are the same in every row.  rows: of the outer table, one a point; `None` = the same ones.  bit: of the own symbol.
        self._fixed = {name: value for name, value in env.items() if type(value) is not list}
        self._outer, self._rows, self._bit = self, None, 0
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

    def _under(self, env: dict[str, Value], count: int, rows: Sequence[int] | None, bit: int) -> Table:
        inner = Table(self._trees, {**self._fixed, **env}, self._lanes, count)
        inner._outer, inner._rows, inner._bit = self, rows, bit
        return inner

    def read(self, x: object) -> Value:
        """The value of an expression: a number, or a column."""
        return self._read(self._trees.node(x) if type(x) is list else x)

    def column(self, x: object) -> list:
        """The value of an expression as a column; `all` and `others` stay words."""
        value = x if type(x) is str and x in WORDS else self.read(x)
        return value if type(value) is list else [value] * self.count

    def values(self, expressions: Iterable[object]) -> list[Value | str]:
        """The values of expressions; `all` and `others` stay words."""
        node, known, found = self._trees.node, self._known, []
        for x in expressions:
            if type(x) is list:
                x = node(x)
            elif type(x) is int or x in WORDS:
                found.append(x)
                continue
            value = known.get(x)
            found.append(self._read(x) if value is None else value)
        return found

    def rows(self, expressions: Iterable[object]) -> list[tuple]:
        """One tuple of values a point."""
        return rows_of(self.values(expressions), self.count)

    def _read(self, x: Node | str | int | bool) -> Value:
        kind = type(x)
        if kind is int or kind is bool:
            return x
        found = self._known.get(x)
        if found is None:
            if kind is str or self._bit and not x.names & self._bit:
                if self._outer is self:
                    raise KeyError(x)
                found = self._outer._read(x)
                if type(found) is list and self._rows is not None:
                    found = [found[i] for i in self._rows]
            elif x.value is _where and type(chosen := self._read(x.args[0])) is not list:
                found = self._read(x.args[1 if chosen else 2])
            else:
                found = x.value(*[a if type(a) is int else self._read(a) for a in x.args])
            self._known[x] = found
        return found

    def _filter(self, cond: object) -> Table:
        chosen = self.read(cond)
        keep = [i for i, c in enumerate(chosen) if c] if type(chosen) is list else range(self.count if chosen else 0)
        return self if len(keep) == self.count else self._under({}, len(keep), keep, 0)

    def _expand(self, loop: dict) -> Table:
        name, bit = loop["name"], self._trees.bit(loop["name"])
        low, high = self.read(loop["lo"]), self.read(loop["hi"])
        if type(low) is list or type(high) is list:
            found = [trips(loop, a, b) for a, b in zip(self.column(loop["lo"]), self.column(loop["hi"]))]
        else:
            found = [trips(loop, low, high)] * self.count
        if self._lanes and loop["over_lanes"]:
            found = [[x for x in self._lanes if x in row] for row in found]
        if type(low) is type(high) is int and found and len(found[0]) == 1:
            return self._under({name: found[0][0]}, self.count, None, bit)
        column = list(chain.from_iterable(found))
        if len(column) > MAX_ROWS:
            raise TooLarge(f"more than {MAX_ROWS} points under the loop over {name}")
        rows = list(chain.from_iterable(map(repeat, range(self.count), map(len, found))))
        return self._under({name: column}, len(column), rows, bit)


def rows_of(values: Iterable[Value | str], count: int) -> list[tuple]:
    """Columns, and values that are the same in every row, as one tuple a row."""
    columns = [v if type(v) is list else repeat(v, count) for v in values]
    return list(zip(*columns)) if columns else [()] * count
