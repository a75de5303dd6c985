"""Which values an index expression can have, from the ranges of its symbols."""
from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidec.index import Node, Op, evaluate, top2

Range = tuple[int, int]
"""(least, most), both included."""

_MAX_SPLITS = 4


def bounds_by_cases(node: object, ranges: Mapping[str, Range], splits: int = _MAX_SPLITS) -> Range:
    """A range that holds every value of the expression where each symbol is in its own.

    A case whose condition speaks of one symbol is decided by splitting that symbol's range, at most `splits` deep; so a symbol that stands in a
    condition and in its branches does not lose the connection.
    """
    if splits:
        for name, points in _splits(node, ranges):
            lo, hi = ranges[name]
            edges = [lo, *(p for p in points if lo < p <= hi), hi + 1]
            parts = [bounds_by_cases(node, {**ranges, name: (a, b - 1)}, splits - 1) for a, b in zip(edges, edges[1:])]
            return min(a for a, _ in parts), max(b for _, b in parts)
    return bounds(node, ranges)


def bounds(node: object, ranges: Mapping[str, Range]) -> Range:
    """The same from the operators alone; a condition has 0, 1 or both."""
    if not isinstance(node, Node):
        return int(node), int(node)
    op, args = node.op, node.args
    if op is Op.SYM:
        return ranges[args[0]]
    if op is Op.ITE:
        return _case(node, ranges)
    if op in (Op.AND, Op.OR):
        parts = [bounds(a, ranges) for a in args]
        choose = min if op is Op.AND else max
        return choose(a for a, _ in parts), choose(b for _, b in parts)
    (al, ah), *rest = (bounds(a, ranges) for a in args)
    if op is Op.NOT:
        return 1 - ah, 1 - al
    if op is Op.TOP2:
        return top2(al), top2(ah)
    ((bl, bh),) = rest
    match op:
        case Op.ADD:
            return al + bl, ah + bh
        case Op.SUB:
            return al - bh, ah - bl
        case Op.MUL:
            corners = (al * bl, al * bh, ah * bl, ah * bh)
            return min(corners), max(corners)
        case Op.DIV:
            return al // bl, ah // bl
        case Op.MOD:
            return (al % bl, ah % bl) if al // bl == ah // bl else (0, bl - 1)
        case Op.WRAP:
            return _union((al, min(ah, bh - 1)), (max(al - bh, 0), ah - bl))
        case Op.BACK:
            return _union((max(al, 0), ah), (al + bl, min(ah, -1) + bh))
        case Op.LT:
            return int(ah < bl), int(al < bh)
        case Op.LE:
            return int(ah <= bl), int(al <= bh)
    assert op is Op.EQ, op
    return int(al == ah == bl == bh), int(al <= bh and bl <= ah)


def _case(node: Node, ranges: Mapping[str, Range]) -> Range:
    cond, then, other = node.args
    holds = bounds(cond, ranges)
    if holds[0] == holds[1]:
        return bounds(then if holds[0] else other, ranges)
    (al, ah), (bl, bh) = bounds(then, ranges), bounds(other, ranges)
    if is_least(node):
        return min(al, bl), min(ah, bh)
    if is_most(node):
        return max(al, bl), max(ah, bh)
    return min(al, bl), max(ah, bh)


def is_least(node: Node) -> bool:
    """Whether it is least(a, b) of simplified parts: where(a <= b, a, b)."""
    cond, then, other = node.args
    return cond.op is Op.LE and cond.args[0] is then and cond.args[1] is other


def is_most(node: Node) -> bool:
    """Whether it is most(a, b) of simplified parts: where(a <= b, b, a)."""
    cond, then, other = node.args
    return cond.op is Op.LE and cond.args[0] is other and cond.args[1] is then


def _union(a: Range, b: Range) -> Range:
    """The smallest range around both, of which one may be empty."""
    parts = [r for r in (a, b) if r[0] <= r[1]]
    return min(lo for lo, _ in parts), max(hi for _, hi in parts)


def _splits(node: object, ranges: Mapping[str, Range]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Symbols and where to split their ranges so that an open condition of a case is decided on both sides."""
    if not isinstance(node, Node) or node.op is Op.SYM:
        return
    if node.op is Op.ITE and not is_least(node) and not is_most(node):
        yield from _split_of(node.args[0], ranges)
    for a in node.args:
        yield from _splits(a, ranges)


def _split_of(cond: object, ranges: Mapping[str, Range]) -> Iterator[tuple[str, tuple[int, ...]]]:
    if not isinstance(cond, Node):
        return
    if cond.op in (Op.AND, Op.OR, Op.NOT):
        for a in cond.args:
            yield from _split_of(a, ranges)
        return
    lo, hi = bounds(cond, ranges)
    names = {s for s in _plain_symbols(cond) if s is None or ranges[s][0] < ranges[s][1]}
    if lo == hi or len(names) != 1 or None in names:
        return
    # a - b is factor * x + const in the one symbol that is not fixed
    (name,) = names
    at = {s: r[0] for s, r in ranges.items()}

    def difference(x: int) -> int:
        env = {**at, name: x}
        return evaluate(cond.args[0], env) - evaluate(cond.args[1], env)

    const = difference(0)
    factor = difference(1) - const
    if factor:
        root = -const // factor if factor > 0 else const // -factor       # the last x with a - b <= 0, or the first with a - b >= 0, less one
        yield name, (root, root + 1, root + 2)


def _plain_symbols(node: object) -> Iterator[str | None]:
    """The symbols of sums and multiples; None for anything else in it."""
    if not isinstance(node, Node):
        return
    if node.op is Op.SYM:
        yield node.args[0]
    elif node.op in (Op.ADD, Op.SUB, Op.LT, Op.LE, Op.EQ) or node.op is Op.MUL and not isinstance(node.args[0], Node):
        for a in node.args:
            yield from _plain_symbols(a)
    else:
        yield None
