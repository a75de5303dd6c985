"""Index expressions: one tree of integers and conditions, read in several ways.

A tree is read as a Python int (`evaluate.py`), as text for people and as JSON (`text.py`), as an SMT-LIB term (`verify/terms.py`) and as
C++ (`emit/cpp.py`). Everything stays linear in the symbols: a product of two symbols and a division by a symbol are refused here.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Union


class Op(Enum):
    """What a node of the tree is; the value is its spelling in JSON."""

    SYM = "sym"
    ADD = "+"
    SUB = "-"
    MUL = "*"
    DIV = "//"
    MOD = "%"
    ITE = "where"
    WRAP = "wrap"
    BACK = "back"
    TOP2 = "top2"
    LT = "<"
    LE = "<="
    EQ = "=="
    AND = "and"
    OR = "or"
    NOT = "not"


class Node:
    """A node: an operator and its arguments (nodes, ints, bools, or the name of a symbol)."""

    __slots__ = ("op", "args")

    def __init__(self, op: Op, *args: object):
        self.op = op
        self.args = args

    def __repr__(self) -> str:
        from tidec.index.text import text

        return text(self)


class Expr(Node):
    """An integer expression. Comparing two of them gives a `Cond`; `==` is refused, write `.eq()`."""

    __slots__ = ()

    def __add__(self, other: Index) -> Index:
        return other_ if (other_ := _same(self, other, 0)) is not None else _binary(Op.ADD, self, other)

    def __radd__(self, other: Index) -> Index:
        return self + other

    def __sub__(self, other: Index) -> Index:
        return other_ if (other_ := _same(self, other, 0)) is not None else _binary(Op.SUB, self, other)

    def __rsub__(self, other: Index) -> Index:
        return _binary(Op.SUB, other, self)

    def __mul__(self, other: Index) -> Index:
        if isinstance(other, Expr):
            raise TypeError("a product of two symbols is not linear: use times(p, x, count)")
        return 0 if other == 0 else self if other == 1 else _binary(Op.MUL, other, self)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> Index:
        return self if _divisor(other) == 1 else _binary(Op.DIV, self, other)

    def __mod__(self, other: int) -> Index:
        return 0 if _divisor(other) == 1 else _binary(Op.MOD, self, other)

    def __lt__(self, other: Index) -> Cond:
        return Cond(Op.LT, self, other)

    def __le__(self, other: Index) -> Cond:
        return Cond(Op.LE, self, other)

    def __gt__(self, other: Index) -> Cond:
        return Cond(Op.LT, other, self)

    def __ge__(self, other: Index) -> Cond:
        return Cond(Op.LE, other, self)

    def eq(self, other: Index) -> Cond:
        """The condition that both are equal."""
        return Cond(Op.EQ, self, other)

    def ne(self, other: Index) -> Cond:
        """The condition that they differ."""
        return Cond(Op.NOT, Cond(Op.EQ, self, other))

    def __eq__(self, other: object) -> bool:
        raise TypeError("== on an index expression: use .eq() for a condition, `is` for identity")

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("an index expression has no truth value in a schedule: use where() or s.when()")


class Cond(Node):
    """A condition over integer expressions."""

    __slots__ = ()

    def __bool__(self) -> bool:
        raise TypeError("a condition has no truth value in a schedule: use where() or s.when()")


Index = Union[Expr, int]
Truth = Union[Cond, bool]


def _binary(op: Op, a: Index, b: Index) -> Expr:
    for x in (a, b):
        if not isinstance(x, Expr) and (isinstance(x, bool) or not isinstance(x, int)):
            raise TypeError(f"{type(x).__name__} in an index expression: only ints and index expressions")
    return Expr(op, a, b)


def _same(a: Expr, b: Index, neutral: int) -> Expr | None:
    return a if not isinstance(b, Expr) and b == neutral else None


def _divisor(d: object) -> int:
    if isinstance(d, Expr):
        raise TypeError("a division by a symbol is not linear: use wrap() or back()")
    if isinstance(d, bool) or not isinstance(d, int) or d < 1:
        raise TypeError(f"a divisor must be an int of at least 1, not {d!r}")
    return d


def symbol(name: str) -> Expr:
    """The symbol of that name."""
    return Expr(Op.SYM, name)


def where(cond: Truth, then: Index, other: Index) -> Index:
    """`then` where the condition holds, else `other`."""
    if isinstance(cond, bool):
        return then if cond else other
    return Expr(Op.ITE, cond, then, other)


def every(*conds: Truth) -> Truth:
    """All of the conditions."""
    left = [c for c in conds if c is not True]
    if any(c is False for c in left):
        return False
    return True if not left else left[0] if len(left) == 1 else Cond(Op.AND, *left)


def some(*conds: Truth) -> Truth:
    """At least one of the conditions."""
    left = [c for c in conds if c is not False]
    if any(c is True for c in left):
        return True
    return False if not left else left[0] if len(left) == 1 else Cond(Op.OR, *left)


def no(cond: Truth) -> Truth:
    """The opposite of the condition."""
    if isinstance(cond, bool):
        return not cond
    return cond.args[0] if cond.op is Op.NOT else Cond(Op.NOT, cond)


def wrap(x: Index, m: Index) -> Index:
    """x mod m, for 0 <= x < 2m (an obligation, V101)."""
    return (x - m if x >= m else x) if isinstance(x, int) and isinstance(m, int) else Expr(Op.WRAP, x, m)


def back(x: Index, m: Index) -> Index:
    """x mod m, for -m <= x < m (an obligation, V101)."""
    return (x + m if x < 0 else x) if isinstance(x, int) and isinstance(m, int) else Expr(Op.BACK, x, m)


def least(a: Index, b: Index) -> Index:
    """The smaller one."""
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else where(_le(a, b), a, b)


def most(a: Index, b: Index) -> Index:
    """The larger one."""
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else where(_le(a, b), b, a)


def _le(a: Index, b: Index) -> Cond:
    return Cond(Op.LE, a, b)


def ceildiv(a: Index, b: int) -> Index:
    """a / b rounded up, for an int b >= 1."""
    return (a + (b - 1)) // b


def times(p: Index, x: Index, count: int) -> Index:
    """p * x for 0 <= p < count, as a chain of cases that stays linear (count is an int)."""
    if isinstance(p, int) or isinstance(x, int):
        return p * x
    result: Index = 0
    for v in range(1, count):
        result = where(p.eq(v), v * x, result)
    return result


def top2(x: Index) -> Index:
    """The largest power of two that is at most x, for x >= 1; 0 for x < 1."""
    if isinstance(x, int):
        return 1 << (x.bit_length() - 1) if x > 0 else 0
    return Expr(Op.TOP2, x)


def substitute(node: object, env: Mapping[str, object]) -> object:
    """The tree with symbols replaced by what `env` maps their names to, constants folded. Others stay."""
    if not isinstance(node, Node):
        return node
    if node.op is Op.SYM:
        return env.get(node.args[0], node)
    return rebuild(node.op, [substitute(a, env) for a in node.args])


def rebuild(op: Op, args: list[object]) -> object:
    """A node of that operator over those arguments, folded where they are constants."""
    if op is Op.ITE:
        return args[1] if args[0] is True else args[2] if args[0] is False else Expr(op, *args)
    if op is Op.AND:
        return every(*args)
    if op is Op.OR:
        return some(*args)
    if op is Op.NOT:
        return no(args[0])
    if op is Op.TOP2:
        return top2(args[0])
    a, b = args
    if isinstance(a, Node) or isinstance(b, Node):
        if op in (Op.LT, Op.LE, Op.EQ):
            return Cond(op, a, b)
    match op:
        case Op.ADD:
            return a + b
        case Op.SUB:
            return a - b
        case Op.MUL:
            return a * b
        case Op.DIV:
            return a // b
        case Op.MOD:
            return a % b
        case Op.WRAP:
            return wrap(a, b)
        case Op.BACK:
            return back(a, b)
        case Op.LT:
            return a < b
        case Op.LE:
            return a <= b
    assert op is Op.EQ
    return a == b


def symbols(node: object) -> Iterator[str]:
    """The names of all symbols of the tree, with repeats."""
    if isinstance(node, Node):
        if node.op is Op.SYM:
            yield node.args[0]
        else:
            for a in node.args:
                yield from symbols(a)


def residues(node: object, path: tuple[Truth, ...] = ()) -> Iterator[tuple[Expr, tuple[Truth, ...]]]:
    """Every wrap and back of the tree with the conditions under which it is reached (V101 holds under them)."""
    if not isinstance(node, Node) or node.op is Op.SYM:
        return
    if node.op in (Op.WRAP, Op.BACK):
        yield node, path
    if node.op is Op.ITE:
        cond, then, other = node.args
        yield from residues(cond, path)
        yield from residues(then, (*path, cond))
        yield from residues(other, (*path, no(cond)))
        return
    if node.op is Op.AND:
        for i, a in enumerate(node.args):
            yield from residues(a, (*path, *node.args[:i]))
        return
    for a in node.args:
        yield from residues(a, path)
