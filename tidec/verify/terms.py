"""The tree read as linear terms that are shared and folded.

A `Terms` reads index expressions with every symbol bound to a term. Integers are kept as linear sums, comparisons as `sum <= 0` or `sum = 0`, so that
equal things are the same object and most trivial obligations fold away before a solver sees them.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from math import gcd, inf
from typing import Union

from tidec.index import Node, Op


class Form(Enum):
    """The shapes of terms."""

    VAR = "var"      # an integer unknown
    SUM = "sum"      # constant + coefficient * term + ...
    DIV = "div"      # floor division by a constant
    MOD = "mod"      # residue by a constant
    ITE = "ite"
    TOP2 = "top2"    # the largest power of two that is at most the term
    LE0 = "le0"      # term <= 0
    EQ0 = "eq0"      # term = 0
    POW2 = "pow2"    # the term is a power of two
    AND = "and"
    OR = "or"
    NOT = "not"      # only of EQ0, POW2, AND, OR

    __hash__ = object.__hash__      # members are hashed for every term; by identity is enough


class Term:
    """A shared term: equal terms of one `Terms` are the same object."""

    __slots__ = ("form", "args", "uid", "under")

    def __init__(self, form: Form, args: tuple, uid: int):
        self.form, self.args, self.uid = form, args, uid
        self.under: tuple[Term, ...] = tuple(t for t, _ in args[1]) if form is Form.SUM else tuple(x for x in args if isinstance(x, Term))


Int = Union[Term, int]
Bool = Union[Term, bool]


class Values:
    """What the symbols of an expression are bound to, with what has been read under that binding."""

    __slots__ = ("at", "memo")

    def __init__(self, at: Mapping[str, Int]):
        self.at = dict(at)
        self.memo: dict[int, tuple[Node, Int | Bool]] = {}

    def __getitem__(self, name: str) -> Int:
        return self.at[name]

    def __contains__(self, name: str) -> bool:
        return name in self.at

    def but(self, **changed: Int) -> Values:
        """The same values with some changed."""
        return Values({**self.at, **changed})


class Terms:
    """A room of shared terms."""

    def __init__(self) -> None:
        self._shared: dict[tuple, Term] = {}
        self._fresh = 0

    def _make(self, form: Form, *args: object) -> Term:
        key = (form, *args)
        term = self._shared.get(key)
        if term is None:
            term = self._shared[key] = Term(form, args, len(self._shared))
        return term

    def var(self, name: str) -> Term:
        """The integer unknown of that name."""
        return self._make(Form.VAR, name)

    def skolem(self, name: str) -> Term:
        """A new unknown whose name begins with `name`."""
        self._fresh += 1
        return self.var(f"{name}!{self._fresh}")

    # ---- integers

    def _parts(self, a: Int, scale: int, into: dict[Term, int]) -> int:
        """Adds scale * a to the sum `into`; returns the constant."""
        if not isinstance(a, Term):
            return scale * a
        if a.form is not Form.SUM:
            into[a] = into.get(a, 0) + scale
            return 0
        for term, factor in a.args[1]:
            into[term] = into.get(term, 0) + scale * factor
        return scale * a.args[0]

    def _sum(self, constant: int, parts: dict[Term, int]) -> Int:
        left = [(t, f) for t, f in parts.items() if f]
        if not left:
            return constant
        if constant == 0 and len(left) == 1 and left[0][1] == 1:
            return left[0][0]
        left.sort(key=lambda p: p[0].uid)
        return self._make(Form.SUM, constant, tuple(left))

    def add(self, a: Int, b: Int, factor: int = 1) -> Int:
        """a + factor * b."""
        if not isinstance(a, Term) and not isinstance(b, Term):
            return a + factor * b
        parts: dict[Term, int] = {}
        constant = self._parts(a, 1, parts) + self._parts(b, factor, parts)
        return self._sum(constant, parts)

    def sub(self, a: Int, b: Int) -> Int:
        return self.add(a, b, -1)

    def scale(self, a: Int, factor: int) -> Int:
        return self.add(0, a, factor)

    def div(self, a: Int, d: int) -> Int:
        """a // d for an int d >= 1; multiples of d leave the quotient."""
        if not isinstance(a, Term):
            return a // d
        parts: dict[Term, int] = {}
        constant = self._parts(a, 1, parts)
        whole = {t: f // d for t, f in parts.items() if f % d == 0}
        rest = self._sum(constant % d, {t: f for t, f in parts.items() if f % d})
        outside = self._sum(constant // d, whole)
        return self.add(outside, rest // d if not isinstance(rest, Term) else self._make(Form.DIV, rest, d))

    def mod(self, a: Int, d: int) -> Int:
        """a % d for an int d >= 1; multiples of d vanish, residues of residues are one residue."""
        if not isinstance(a, Term):
            return a % d
        parts: dict[Term, int] = {}
        constant = self._parts(a, 1, parts)
        for t in [t for t in parts if t.form is Form.MOD and t.args[1] % d == 0]:
            factor = parts.pop(t)
            constant += self._parts(t.args[0], factor, parts)
        small = {t: (f % d if f % d <= d // 2 else f % d - d) for t, f in parts.items()}
        rest = self._sum(constant % d, small)
        return rest % d if not isinstance(rest, Term) else self._make(Form.MOD, rest, d)

    def ite(self, cond: Bool, then: Int, other: Int) -> Int:
        if isinstance(cond, bool):
            return then if cond else other
        return then if then is other or (not isinstance(then, Term) and not isinstance(other, Term) and then == other) else self._make(Form.ITE, cond, then, other)

    def top2(self, a: Int) -> Int:
        if not isinstance(a, Term):
            return 1 << (a.bit_length() - 1) if a > 0 else 0
        return self._make(Form.TOP2, a)

    def wrap(self, x: Int, m: Int) -> Int:
        return self.ite(self.le(m, x), self.sub(x, m), x)

    def back(self, x: Int, m: Int) -> Int:
        return self.ite(self.lt(x, 0), self.add(x, m), x)

    # ---- conditions

    def le(self, a: Int, b: Int) -> Bool:
        d = self.sub(a, b)
        if not isinstance(d, Term):
            return d <= 0
        if d.form is Form.SUM:
            shared = gcd(*(f for _, f in d.args[1]))
            if shared > 1:        # divided by what the coefficients share, the constant rounded so that `d <= 0` says the same
                d = self._sum(-(-d.args[0] // shared), {t: f // shared for t, f in d.args[1]})
        least, most = _range(d)
        return True if most <= 0 else False if least > 0 else self._make(Form.LE0, d)

    def lt(self, a: Int, b: Int) -> Bool:
        return self.le(self.add(a, 1), b)

    def eq(self, a: Int, b: Int) -> Bool:
        d = self.sub(a, b)
        if not isinstance(d, Term):
            return d == 0
        if d.form is Form.SUM:
            constant, parts = d.args
            shared = gcd(*(f for _, f in parts))
            if constant % shared:
                return False
            if shared > 1 or parts[0][1] < 0:
                shared = -shared if parts[0][1] < 0 else shared
                d = self._sum(constant // shared, {t: f // shared for t, f in parts})
        if d.form is Form.SUM and d.args[0] == 0 and len(d.args[1]) == 2:
            (x, f), (y, g) = d.args[1]
            if f == -g == 1 and x.form is y.form is Form.MOD and x.args[1] == y.args[1]:
                return self.eq(self.mod(self.sub(x.args[0], y.args[0]), x.args[1]), 0)      # two residues are equal if that of the difference is 0
        least, most = _range(d)
        return False if least > 0 or most < 0 else self._make(Form.EQ0, d)

    def no(self, a: Bool) -> Bool:
        if isinstance(a, bool):
            return not a
        if a.form is Form.NOT:
            return a.args[0]
        if a.form is Form.LE0:
            return self.le(1, a.args[0])
        return self._make(Form.NOT, a)

    def every(self, conds: Iterable[Bool]) -> Bool:
        left: dict[Term, None] = {}
        for c in conds:
            if c is False:
                return False
            if isinstance(c, Term):
                left.update(dict.fromkeys(c.args) if c.form is Form.AND else {c: None})
        for c in left:
            if (opposite := self.no(c)) in left and isinstance(opposite, Term):
                return False
        return True if not left else next(iter(left)) if len(left) == 1 else self._make(Form.AND, *left)

    def some(self, conds: Iterable[Bool]) -> Bool:
        left: dict[Term, None] = {}
        for c in conds:
            if c is True:
                return True
            if isinstance(c, Term):
                left.update(dict.fromkeys(c.args) if c.form is Form.OR else {c: None})
        for c in left:
            if (opposite := self.no(c)) in left and isinstance(opposite, Term):
                return True
        return False if not left else next(iter(left)) if len(left) == 1 else self._make(Form.OR, *left)

    def implies(self, a: Bool, b: Bool) -> Bool:
        return self.some((self.no(a), b))

    def equal(self, a: Iterable[Int], b: Iterable[Int]) -> Bool:
        """All pairs are equal; both have the same length."""
        return self.every(self.eq(x, y) for x, y in zip(a, b, strict=True))

    def lex_less(self, a: tuple[Int, ...], b: tuple[Int, ...]) -> Bool:
        """a comes before b in lexicographic order; both have the same length."""
        result: Bool = False
        for x, y in reversed(list(zip(a, b, strict=True))):
            result = self.some((self.lt(x, y), self.every((self.eq(x, y), result))))
        return result

    def pow2(self, a: Int) -> Bool:
        return a > 0 and a & (a - 1) == 0 if not isinstance(a, Term) else self._make(Form.POW2, a)

    def replace(self, root: object, known: dict[Term, Int | Bool]) -> Int | Bool:
        """The term with some terms replaced by others, folded again. `known` grows by what was rebuilt."""
        for t in closure((root,)):
            if t in known:
                continue
            new = [known[c] if isinstance(c, Term) else c for c in children(t)]
            known[t] = t if all(a is b for a, b in zip(new, children(t))) else self._rebuilt(t, new)
        return known[root] if isinstance(root, Term) else root

    def _rebuilt(self, t: Term, new: list) -> Int | Bool:
        match t.form:
            case Form.SUM:
                total: Int = t.args[0]
                for x, (_, factor) in zip(new, t.args[1]):
                    total = self.add(total, x, factor)
                return total
            case Form.DIV:
                return self.div(new[0], t.args[1])
            case Form.MOD:
                return self.mod(new[0], t.args[1])
            case Form.ITE:
                return self.ite(new[0], new[1], new[2])
            case Form.TOP2:
                return self.top2(new[0])
            case Form.LE0:
                return self.le(new[0], 0)
            case Form.EQ0:
                return self.eq(new[0], 0)
            case Form.POW2:
                return self.pow2(new[0])
            case Form.AND:
                return self.every(new)
            case Form.OR:
                return self.some(new)
        assert t.form is Form.NOT
        return self.no(new[0])

    # ---- reading index expressions

    def read(self, node: object, values: Values) -> Int | Bool:
        """The expression with its symbols bound. Raises KeyError for a symbol that has no value."""
        if not isinstance(node, Node):
            return node
        if node.op is Op.SYM:
            return values.at[node.args[0]]
        known = values.memo.get(id(node))
        if known is not None:
            return known[1]
        args = [self.read(a, values) for a in node.args]
        result = self._apply(node.op, args)
        values.memo[id(node)] = (node, result)
        return result

    def _apply(self, op: Op, args: list) -> Int | Bool:
        match op:
            case Op.ADD:
                return self.add(args[0], args[1])
            case Op.SUB:
                return self.sub(args[0], args[1])
            case Op.MUL:
                return self.scale(args[1], args[0]) if not isinstance(args[0], Term) else self.scale(args[0], args[1])
            case Op.DIV:
                return self.div(args[0], args[1])
            case Op.MOD:
                return self.mod(args[0], args[1])
            case Op.ITE:
                return self.ite(args[0], args[1], args[2])
            case Op.WRAP:
                return self.wrap(args[0], args[1])
            case Op.BACK:
                return self.back(args[0], args[1])
            case Op.TOP2:
                return self.top2(args[0])
            case Op.LT:
                return self.lt(args[0], args[1])
            case Op.LE:
                return self.le(args[0], args[1])
            case Op.EQ:
                return self.eq(args[0], args[1])
            case Op.AND:
                return self.every(args)
            case Op.OR:
                return self.some(args)
        assert op is Op.NOT
        return self.no(args[0])


def _range(d: Term) -> tuple[float, float]:
    """The least and the greatest value that its form allows: residues have a range, all else has none."""
    if d.form is Form.MOD:
        return 0, d.args[1] - 1
    if d.form is Form.SUM and len(d.args[1]) == 1 and (t := d.args[1][0][0]).form is Form.MOD:
        ends = d.args[0], d.args[0] + d.args[1][0][1] * (t.args[1] - 1)
        return min(ends), max(ends)
    return -inf, inf


def children(term: Term) -> tuple:
    if term.form is Form.VAR:
        return ()
    if term.form is Form.SUM:
        return tuple(t for t, _ in term.args[1])
    return term.args


def closure(roots: Iterable[object]) -> list[Term]:
    """Every term under the roots, arguments before what uses them."""
    done: dict[Term, None] = {}
    stack = [(t, False) for t in reversed(list(roots)) if isinstance(t, Term)]
    while stack:
        term, ready = stack.pop()
        if term in done:
            continue
        if ready:
            done[term] = None
            continue
        stack.append((term, True))
        stack += [(c, False) for c in term.under if c not in done]
    return list(done)
