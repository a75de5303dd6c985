"""The checker's own reading of index expressions and loops, straight from JSON: values of one point, or of a whole column of points at once.

An expression is an int, a bool, the name of a symbol, or a list: operator, arguments. A symbol stands for a number or for a column, which is a
list of numbers, one a row of a table. Nothing here is compiled, and nothing is shared with `index/`.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import chain, repeat
from typing import NamedTuple

Value = int | bool | list

MAX_ROWS = 400_000
WORDS = ("all", "others")
# Ops that move nothing: what they order is the graph's and the theorems' business.
ORDERING = ("wait", "signal", "join")


class TooLarge(Exception):
    """A table or a graph with more rows than the checker takes on."""


def _top2(x: int) -> int:
    return 1 << (x.bit_length() - 1) if x > 0 else 0


def _wrap(a: int, m: int) -> int:
    return a - m if a >= m else a


def _back(a: int, m: int) -> int:
    return a + m if a < 0 else a


_TWO: dict[str, Callable] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod, "<": operator.lt, "<=": operator.le, "==": operator.eq,
    "wrap": _wrap, "back": _back, "and": operator.and_, "or": operator.or_,
}
_ONE: dict[str, Callable] = {"not": operator.not_, "top2": _top2}
_MANY = ("and", "or")


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
    if len(x) == 2 and x[0] in _ONE:
        return _ONE[x[0]](read(x[1], env))
    if len(x) == 3 or x[0] in _MANY and len(x) > 1:
        return reduce(_TWO[x[0]], [read(a, env) for a in x[1:]])
    raise ValueError(f"{x[0]} has {len(x) - 1} arguments")


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


class Level:
    """The rows under some loops and conditions. rows: which row of the level around it each one belongs to."""

    __slots__ = ("outer", "rows", "count", "depth", "_known")

    def __init__(self, outer: Level | None, rows: Sequence[int], count: int):
        self.outer, self.rows, self.count = outer, rows, count
        self.depth: int = outer.depth + 1 if outer else 0
        self._known: dict[Column, list] = {}

    def values(self, column: Column) -> list:
        """A column of this level or of one around it, as one of this level."""
        if column.level is self:
            return column.values
        found = self._known.get(column)
        if found is None:
            found = self._known[column] = list(map(self.outer.values(column).__getitem__, self.rows))
        return found


class Column:
    """One value a row of a level; another column is another object."""

    __slots__ = ("values", "level")

    def __init__(self, values: list, level: Level):
        self.values, self.level = values, level


class Table:
    """The points under some loops and conditions, in the order of issue: a number or a column for every symbol and every expression.

    What depends on outer loops alone is read once for each row of theirs, and equal expressions over one column are one column. Of a choice by a number
    only one side is read.
    """

    def __init__(self, env: dict[str, Value], count: int = 1):
        """env: the symbols outside all loops. count: the length of the columns among them."""
        level = Level(None, (), count)
        self._set({name: Column(x, level) if type(x) is list else x for name, x in env.items()}, level, {})

    def _set(self, names: dict[str, Term], level: Level, known: dict[tuple, Column]) -> None:
        self.count = level.count
        self._names, self._level = names, level
        self._known = known                                     # by operator and arguments: columns of all tables of one program
        self._inside: dict[tuple[int, bool], Table] = {}

    def under(self, path: Iterable[dict], lanes: tuple[int, ...] = ()) -> Table:
        """The points under more loops and conditions, each made once. lanes: those that loops over lanes take, always the same ones; empty = all of them."""
        table = self
        for item in path:
            if not table.count:
                return table
            is_loop = item["is"] != "when"
            key = (id(item), bool(lanes and is_loop and item["over_lanes"]))
            found = table._inside.get(key)
            if found is None:
                found = table._inside[key] = table._expand(item, lanes if key[1] else ()) if is_loop else table._filter(item["cond"])
            table = found
        return table

    def read(self, x: object) -> Value:
        """The value of an expression: a number, or a column."""
        value = self._value(x) if type(x) is list else self._names[x] if type(x) is str else x
        return self._level.values(value) if type(value) is Column else value

    def column(self, x: object) -> list:
        """The value of an expression as a column."""
        value = self.read(x)
        return value if type(value) is list else [value] * self.count

    def values(self, expressions: Iterable[object]) -> list[Value | str]:
        """The values of expressions; `all` and `others` stay words."""
        names, level, found = self._names, self._level, []
        for x in expressions:
            if type(x) is list:
                x = self._value(x)
            elif type(x) is str and x not in WORDS:
                x = names[x]
            found.append(level.values(x) if type(x) is Column else x)
        return found

    def rows(self, expressions: Iterable[object]) -> list[tuple]:
        """One tuple of values a point."""
        return rows_of(self.values(expressions), self.count) if self.count else []

    def _value(self, x: list) -> Term:
        if len(x) == 3:
            op, a, b = x
            if type(a) is list:
                a = self._value(a)
            elif type(a) is str:
                a = self._names[a]
            if type(b) is list:
                b = self._value(b)
            elif type(b) is str:
                b = self._names[b]
            # NOTE: True == 1 as a key, and every operator takes them for the same.
            if type(a) is Column or type(b) is Column:
                return self._known.get((op, a, b)) or self._made(op, a, b)
            return _TWO[op](a, b)
        if x[0] != "where":
            return self._other(*x)
        _, cond, then, other = x
        cond = self._value(cond) if type(cond) is list else self._term(cond)
        if type(cond) is not Column:
            x = then if cond else other
            return self._value(x) if type(x) is list else self._term(x)
        then = self._value(then) if type(then) is list else self._term(then)
        other = self._value(other) if type(other) is list else self._term(other)
        return self._known.get((cond, then, other)) or self._chosen(cond, then, other)

    def _term(self, x: object) -> Term:
        return self._value(x) if type(x) is list else self._names[x] if type(x) is str else x

    def _other(self, op: str, *args: object) -> Term:
        """An operator that has not two arguments."""
        a, *rest = map(self._term, args)
        if op in _MANY:
            for b in rest:
                a = (self._known.get((op, a, b)) or self._made(op, a, b)) if type(a) is Column or type(b) is Column else _TWO[op](a, b)
            return a
        if rest or op not in _ONE:
            raise ValueError(f"{op} has {len(args)} arguments")
        if type(a) is not Column:
            return _ONE[op](a)
        found = self._known.get((op, a))
        if found is None:
            found = self._known[op, a] = Column(list(map(_ONE[op], a.values)), a.level)
        return found

    def _made(self, op: str, a: Term, b: Term) -> Column:
        """A column of an operator over two terms, one of which is a column."""
        f = _TWO[op]
        if type(b) is not Column:
            level = a.level
            if f is _wrap:
                values = [x - b if x >= b else x for x in a.values]
            elif f is _back:
                values = [x + b if x < 0 else x for x in a.values]
            else:
                values = [*map(f, a.values, repeat(b))]
        elif type(a) is not Column:
            level, values = b.level, [*map(f, repeat(a), b.values)]
        else:
            level = a.level if a.level.depth > b.level.depth else b.level
            values = [*map(f, level.values(a), level.values(b))]
        found = self._known[op, a, b] = Column(values, level)
        return found

    def _chosen(self, cond: Column, *sides: Term) -> Column:
        level = max((x.level for x in (cond, *sides) if type(x) is Column), key=_depth)
        then, other = (level.values(x) if type(x) is Column else repeat(x) for x in sides)
        found = self._known[cond, *sides] = Column([a if c else b for c, a, b in zip(level.values(cond), then, other)], level)
        return found

    def _filter(self, cond: object) -> Table:
        chosen = self.read(cond)
        keep = [i for i, c in enumerate(chosen) if c] if type(chosen) is list else range(self.count if chosen else 0)
        return self if len(keep) == self.count else self._under({}, Level(self._level, keep, len(keep)))

    def _under(self, names: dict[str, Term], level: Level) -> Table:
        inner = Table.__new__(Table)
        inner._set({**self._names, **names}, level, self._known)
        return inner

    def _expand(self, loop: dict, lanes: tuple[int, ...]) -> Table:
        name, low, high = loop["name"], self.read(loop["lo"]), self.read(loop["hi"])
        if type(low) is list or type(high) is list:
            found = [trips(loop, a, b) for a, b in zip(*(x if type(x) is list else repeat(x) for x in (low, high)))]
        else:
            found = [trips(loop, low, high)] * self.count
        if lanes:
            found = [[x for x in lanes if x in row] for row in found]
        if type(low) is type(high) is int and len(found[0]) == 1:
            return self._under({name: found[0][0]}, self._level)
        count = sum(map(len, found))
        if count > MAX_ROWS:
            raise TooLarge(f"more than {MAX_ROWS} points under the loop over {name}")
        level = Level(self._level, list(chain.from_iterable(map(repeat, range(self.count), map(len, found)))), count)
        return self._under({name: Column(list(chain.from_iterable(found)), level)}, level)


Term = int | bool | Column
_depth = operator.attrgetter("depth")


def rows_of(values: Iterable[Value | str], count: int) -> list[tuple]:
    """Columns, and values that are the same in every row, as one tuple a row."""
    columns = [v if type(v) is list else repeat(v, count) for v in values]
    return list(zip(*columns)) if columns else [()] * count
