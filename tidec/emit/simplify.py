"""An index expression made shorter for one plan: the same value wherever its symbols are in their ranges.

The node count is known here, so the ranges of the loop indices settle most cases of a schedule (is this the own contributor? is this the only
wave?). Sums are collected, settled cases are taken, a residue that changes nothing goes. M keeps its name. Equal results are one object.
"""
from __future__ import annotations

from collections.abc import Mapping

from tidec.emit.ranges import Range, bounds_by_cases
from tidec.index import Cond, Expr, Index, Node, Op, Truth

COMPARISONS = (Op.LT, Op.LE, Op.EQ)

Linear = dict[object, tuple[int, object]]
"""A sum: the id of an atom to (coefficient, atom), and () to (constant, 1)."""


class Simplifier:
    """Simplifies expressions over symbols whose ranges are known; ranges may be added, and never change."""

    def __init__(self, ranges: Mapping[str, Range]):
        self._ranges = dict(ranges)
        self._nodes: dict[tuple, Node] = {}
        self._simple: dict[int, tuple[Node, object]] = {}      # with the source, so that its id stays taken
        self._bounds: dict[int, Range] = {}

    def add(self, name: str, least: int, most: int) -> None:
        """A symbol more, with least <= its value <= most."""
        assert name not in self._ranges and least <= most, (name, least, most)
        self._ranges[name] = (least, most)

    def __call__(self, node: object) -> object:
        """The shorter expression: a Node of this simplifier, an int or a bool."""
        if not isinstance(node, Node):
            return node
        if id(node) not in self._simple:
            self._simple[id(node)] = node, self._simplified(node)
        return self._simple[id(node)][1]

    def bounds(self, node: object) -> Range:
        """A range that holds every value of the (simplified) expression."""
        if not isinstance(node, Node):
            return int(node), int(node)
        if id(node) not in self._bounds:
            self._bounds[id(node)] = bounds_by_cases(node, self._ranges)
        return self._bounds[id(node)]

    def node(self, op: Op, *args: object) -> Node:
        """The one node of that operator over those simplified arguments, as it is."""
        key = (op, *(id(a) if isinstance(a, Node) else (type(a), a) for a in args))
        if key not in self._nodes:
            self._nodes[key] = (Cond if op in (*COMPARISONS, Op.AND, Op.OR, Op.NOT) else Expr)(op, *args)
        return self._nodes[key]

    # ---- by operator

    def _simplified(self, node: Node) -> object:
        op = node.op
        if op is Op.SYM:
            return self.node(op, node.args[0])
        args = [self(a) for a in node.args]
        match op:
            case Op.ADD | Op.SUB:
                return self._spelt(_plus(self._linear(args[0]), self._linear(args[1]), 1 if op is Op.ADD else -1))
            case Op.MUL:
                return self._product(*args)
            case Op.DIV:
                return self._quotient(*args)
            case Op.MOD:
                return self._residue(*args)
            case Op.WRAP | Op.BACK:
                return self._cyclic(op, *args)
            case Op.ITE:
                return self._case(*args)
            case Op.AND | Op.OR:
                return self._junction(op, args)
            case Op.NOT:
                return self._opposite(args[0])
            case Op.TOP2:
                return self._folded(self.node(op, *args))
        assert op in COMPARISONS, op
        return self._comparison(op, *args)

    def _folded(self, node: Node) -> object:
        lo, hi = self.bounds(node)
        return lo if lo == hi else node

    def _case(self, cond: Truth, then: Index, other: Index) -> Index:
        if isinstance(cond, bool):
            return then if cond else other
        if _same(then, other):
            return then
        if cond.op is Op.NOT:
            return self._case(cond.args[0], other, then)
        return self._folded(self.node(Op.ITE, cond, then, other))

    def _junction(self, op: Op, args: list[Truth]) -> Truth:
        absorbing = op is Op.OR
        left: list[Cond] = []
        for a in args:
            if a is absorbing:
                return absorbing
            if isinstance(a, Node):
                left += [x for x in (a.args if a.op is op else (a,)) if not any(x is y for y in left)]
        if any(self._opposite(x) is y for x in left for y in left):
            return absorbing
        return not absorbing if not left else left[0] if len(left) == 1 else self.node(op, *left)

    def _opposite(self, cond: Truth) -> Truth:
        if isinstance(cond, bool):
            return not cond
        if cond.op is Op.NOT:
            return cond.args[0]
        if cond.op is Op.LT:
            return self.node(Op.LE, cond.args[1], cond.args[0])
        if cond.op is Op.LE:
            return self.node(Op.LT, cond.args[1], cond.args[0])
        return self.node(Op.NOT, cond)

    def _comparison(self, op: Op, a: Index, b: Index) -> Truth:
        lo, hi = self.bounds(self._difference(a, b))
        if op is Op.EQ and not lo == hi == 0:
            if lo > 0 or hi < 0:
                return False
            # where(c, 1, 0) == 1 is c, where(c, 1, 0) == 0 is not c
            for case, value in ((a, b), (b, a)):
                if isinstance(case, Node) and case.op is Op.ITE and not any(isinstance(x, Node) for x in (*case.args[1:], value)):
                    cond, then, other = case.args
                    return cond if then == value else self._opposite(cond) if other == value else False
            return self.node(op, a, b)
        if hi < 0 or hi == 0 and op is not Op.LT:
            return True
        return False if lo > 0 or lo == 0 and op is Op.LT else self.node(op, a, b)

    def _product(self, a: Index, b: Index) -> Index:
        for factor, x in ((a, b), (b, a)):
            if not isinstance(factor, Node):
                return self._spelt(_plus({}, self._linear(x), factor))
        return self.node(Op.MUL, a, b)

    def _cyclic(self, op: Op, x: Index, m: Index) -> Index:
        """wrap(x, m) is x or x - m, back(x, m) is x or x + m."""
        lo, hi = self.bounds(self._difference(x, m) if op is Op.WRAP else x)
        if hi < 0:
            return x if op is Op.WRAP else self._spelt(_plus(self._linear(x), self._linear(m), 1))
        if lo >= 0:
            return x if op is Op.BACK else self._difference(x, m)
        return self.node(op, x, m)

    def _residue(self, x: Index, d: int) -> Index:
        """x % d: whole multiples of d go, and what is left is made positive, so that C++'s % gives the same."""
        terms = {k: t for k, t in self._linear(x).items() if k == () or t[0] % d}
        terms = self._lifted(terms, d)[0]
        inner = self._spelt(terms)
        if not isinstance(inner, Node) or self.bounds(inner)[1] < d:
            return inner if isinstance(inner, Node) else inner % d
        return self._folded(self.node(Op.MOD, inner, d))

    def _quotient(self, x: Index, d: int) -> Index:
        """x // d: whole multiples of d are taken out, and what is left is made positive, so that C++'s / gives the same."""
        terms = self._linear(x)
        whole = {k: (t[0] // d, t[1]) for k, t in terms.items() if k != () and t[0] % d == 0}
        rest, lift = self._lifted({k: t for k, t in terms.items() if k not in whole}, d)
        inner = self._spelt(rest)
        part = self._folded(self.node(Op.DIV, inner, d)) if isinstance(inner, Node) else inner // d
        return self._spelt(_plus(_plus(whole, self._linear(part), 1), {(): (lift, 1)}, -1))

    def _lifted(self, terms: Linear, d: int) -> tuple[Linear, int]:
        """The sum plus the multiple of d that makes it at least 0, its constant as small as can be; and that multiple's factor."""
        const = terms.get((), (0, 1))[0]
        low = self.bounds(self._spelt(terms))[0]
        factor = -(low // d) if low < 0 else -max(0, min(low // d, const // d))
        return {**terms, (): (const + factor * d, 1)}, factor

    # ---- sums

    def _difference(self, a: Index, b: Index) -> Index:
        return self._spelt(_plus(self._linear(a), self._linear(b), -1))

    def _linear(self, node: Index) -> Linear:
        if not isinstance(node, Node):
            return {(): (node, 1)}
        if node.op in (Op.ADD, Op.SUB):
            return _plus(self._linear(node.args[0]), self._linear(node.args[1]), 1 if node.op is Op.ADD else -1)
        if node.op is Op.MUL and not isinstance(node.args[0], Node):
            return _plus({}, self._linear(node.args[1]), node.args[0])
        return {id(node): (1, node)}

    def _spelt(self, terms: Linear) -> Index:
        """The sum as a tree: what is added, what is taken away, the constant."""
        const = terms.get((), (0, 1))[0]
        rest = [t for k, t in terms.items() if k != () and t[0]]
        rest.sort(key=lambda t: t[0] < 0)
        if not rest:
            return const
        first, rest = (const, rest) if rest[0][0] < 0 < const else (self._scaled(*rest[0]), rest[1:])
        result = first
        for factor, atom in rest:
            result = self.node(Op.ADD if factor > 0 else Op.SUB, result, self._scaled(abs(factor), atom))
        if const and first is not const:
            result = self.node(Op.ADD if const > 0 else Op.SUB, result, abs(const))
        return result

    def _scaled(self, factor: int, atom: object) -> object:
        return atom if factor == 1 else self.node(Op.MUL, factor, atom)


def _plus(a: Linear, b: Linear, factor: int) -> Linear:
    """a + factor * b, in the order of appearance."""
    total = dict(a)
    for key, (c, atom) in b.items():
        total[key] = (total.get(key, (0, atom))[0] + factor * c, atom)
    return {k: t for k, t in total.items() if t[0]}


def _same(a: Index, b: Index) -> bool:
    return a is b or not isinstance(a, Node) and not isinstance(b, Node) and a == b
