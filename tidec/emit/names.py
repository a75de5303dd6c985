"""Which values of a walk get a name, where it is defined, and the walk as text.

A value gets a name if it has cases, if several places share it, if it stays the same in the loop that uses it, or if it is long. It is
defined outside every loop that it does not depend on, before the first statement that needs it.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tidec.emit.cpp import Speller
from tidec.emit.ranges import is_least, is_most
from tidec.emit.walk import WORDS, Line, Nest, Part, Scan, Statement, Value, loop_symbols
from tidec.errors import Spot
from tidec.index import Cond, Node, Op

_ROOT = ""
_LONG = 6
_INDENT = "  "
_COMMENT_COLUMN = 116
_SUMS = (Op.ADD, Op.SUB, Op.MUL)
_CHEAP = (*_SUMS, Op.LT, Op.LE, Op.EQ, Op.NOT)


@dataclass(slots=True)
class _Need:
    """A value and the places that need it.

    places: the loops around a place, outermost first, and the number of the statement in each of them.
    holders: the values and places that hold it.
    """

    node: Node
    is_whole: bool = False
    places: list[tuple[tuple[str, ...], tuple[int, ...]]] = field(default_factory=list)
    holders: set[int] = field(default_factory=set)

    def home(self) -> int:
        """The depth of the innermost loop that it depends on."""
        own = loop_symbols(self.node)
        loops = self.places[0][0]
        return max((depth for depth, index in enumerate(loops) if index in own), default=0)


@dataclass(frozen=True, slots=True)
class _Definition:
    node: Node
    name: str
    before: int


class Naming:
    """The names of a walk's values. spell: the text of a value.  definitions: those of a loop's body (of the walk: ""), in order."""

    def __init__(self, scan: Scan):
        self._scan = scan
        self._needs: dict[int, _Need] = {}
        self._num_places = 0
        self._gather(scan.statements, (_ROOT,), (), -1)
        self._named: dict[int, str] = {}
        self._weights: dict[int, int] = {}
        chosen = [need for key, need in self._needs.items() if self._choose(key, need)]
        self.spell = Speller(scan.simple, self._named)
        for need in self._needs.values():
            if need.node.op is Op.SYM:
                self._named[id(need.node)] = need.node.args[0].split("#")[0]
        self.definitions = self._assign(chosen)

    # ---- who needs what

    def _gather(self, statements: Sequence[Statement], loops: tuple[str, ...], at: tuple[int, ...], fixed: int) -> None:
        """fixed: the number of the condition that the statements stand under, which they share; -1 of none."""
        for i, statement in enumerate(statements):
            here = (*at, i if fixed < 0 else fixed)
            for part in statement.parts if isinstance(statement, Line) else statement.head:
                if isinstance(part, Value) and isinstance(part.node, Node):
                    self._num_places += 1
                    self._need(part.node, (loops, here), -self._num_places, set())
                    self._needs[id(part.node)].is_whole = True
            if isinstance(statement, Nest):
                if statement.index:
                    self._gather(statement.body, (*loops, statement.index), here, -1)
                else:
                    self._gather(statement.body, loops, at, here[-1])

    def _need(self, node: Node, place: tuple[tuple[str, ...], tuple[int, ...]], holder: int, seen: set[int]) -> None:
        """Innermost values first."""
        if id(node) not in seen:
            seen.add(id(node))
            for a in _parts(node):
                self._need(a, place, id(node), seen)
            self._needs.setdefault(id(node), _Need(node)).places.append(place)
        self._needs[id(node)].holders.add(holder)

    # ---- which get a name

    def _choose(self, key: int, need: _Need) -> bool:
        node = need.node
        weight = 0 if node.op is Op.SYM else 1 + sum(self._weights[id(a)] for a in _parts(node))
        holders = [self._needs[h].node.op if h in self._needs else Op.SYM for h in need.holders]
        is_shared = len(holders) > 1
        is_steady = need.is_whole and any(len(loops) - 1 > need.home() for loops, _ in need.places)
        lo, hi = self._scan.simple.bounds(node)
        if node.op is Op.SYM or lo == hi or weight == 1 and node.op in _CHEAP or node.op in _SUMS and not need.is_whole and set(holders) <= set(_SUMS):
            chosen = False                                     # nothing to say, or only the beginning of a sum
        elif isinstance(node, Cond):
            chosen = is_shared and weight > 3
        elif node.op is Op.ITE and not is_least(node) and not is_most(node):
            chosen = is_shared or is_steady or holders != [Op.ITE]
        else:
            chosen = is_shared or is_steady or need.is_whole and weight >= _LONG
        self._weights[key] = 0 if chosen else weight
        return chosen

    # ---- what it is

    def _assign(self, chosen: list[_Need]) -> dict[str, list[_Definition]]:
        by_loop: dict[str, list[_Need]] = {}
        for need in chosen:
            by_loop.setdefault(need.places[0][0][need.home()], []).append(need)
        never = WORDS | self._scan.loop_names
        result: dict[str, list[_Definition]] = {}
        names: dict[str, frozenset[str]] = {}
        for loop in sorted(by_loop, key=lambda loop: min(len(need.places[0][0][: need.home() + 1]) for need in by_loop[loop])):
            needs = by_loop[loop]
            above = needs[0].places[0][0][: needs[0].home()]
            taken = never.union(*(names.get(a, frozenset()) for a in above))
            definitions = []
            for need in needs:
                name = self._name(need.node, taken)
                taken |= {name}
                self._named[id(need.node)] = name
                definitions.append(_Definition(need.node, name, min(at[need.home()] for _, at in need.places)))
            names[loop] = taken
            result[loop] = sorted(definitions, key=lambda d: d.before)
        return result

    def _name(self, node: Node, taken: frozenset[str]) -> str:
        hints = [h for h in self._scan.hints.get(id(node), ()) if h not in taken]
        if hints:
            return hints[0]
        inner = sorted(s.split("#")[0] for s in loop_symbols(node))
        stem = (self._scan.hints.get(id(node), ()) or ["is_" + "_".join(inner) if isinstance(node, Cond) else inner[-1] if inner else "v"])[0]
        return next(f"{stem}_{i}" for i in range(1, len(self._needs) + 2) if f"{stem}_{i}" not in taken)


def _parts(node: Node) -> list[Node]:
    """The values in a value; the condition of a least or most repeats them."""
    args = node.args[1:] if node.op is Op.ITE and (is_least(node) or is_most(node)) else node.args
    return [a for a in args if isinstance(a, Node)]


def lines(scan: Scan) -> list[str]:
    """The walk, a line a string, each with its schedule line in a trailing comment."""
    naming = Naming(scan)
    return list(_body(scan.statements, _ROOT, naming, 1))


def _body(statements: Sequence[Statement], loop: str | tuple[()], naming: Naming, depth: int) -> Iterator[str]:
    """The statements of a loop with its definitions; loop: () of a condition, which has none."""
    waiting = list(naming.definitions.get(loop, ())) if isinstance(loop, str) else []
    for i, statement in enumerate(statements):
        while waiting and waiting[0].before == i:
            d = waiting.pop(0)
            kind = "bool" if isinstance(d.node, Cond) else "int64_t"
            yield _line(f"const {kind} {d.name} = {naming.spell.text(d.node, is_whole=True)};", statement.spot, depth)
        yield from _statement(statement, naming, depth)
    assert not waiting, waiting


def _statement(statement: Statement, naming: Naming, depth: int) -> Iterator[str]:
    if isinstance(statement, Line):
        yield from _lines(_text(statement.parts, naming), statement.spot, depth)
        return
    if statement.stream:
        yield _line(f"ops.begin_set({statement.stream});", statement.spot, depth)
    head = _text(statement.head, naming)
    body = list(_body(statement.body, statement.index or (), naming, depth + 1))
    inner = _single(statement, naming)
    if inner and len(head) + len(inner) + len(_INDENT) * depth < _COMMENT_COLUMN:
        yield _line(f"{head} {inner}", _innermost(statement).spot, depth)
    else:
        yield _line(f"{head} {{", statement.spot, depth)
        yield from body
        yield _INDENT * depth + "}"
    if statement.stream:
        yield _line(f"ops.end_set({statement.stream});", statement.spot, depth)


def _single(nest: Nest, naming: Naming) -> str:
    """The body on one line, "" where it has more than one, or names."""
    if len(nest.body) != 1 or naming.definitions.get(nest.index or "-"):
        return ""
    (only,) = nest.body
    if isinstance(only, Line):
        return _text(only.parts, naming).replace(",\n", ", ")
    inner = _single(only, naming)
    return f"{_text(only.head, naming)} {inner}" if inner and not only.index else ""


def _innermost(statement: Statement) -> Line:
    """The op on that one line: the schedule's line that is told is its own."""
    return statement if isinstance(statement, Line) else _innermost(statement.body[0])


def _text(parts: Sequence[Part], naming: Naming) -> str:
    return "".join(part if isinstance(part, str) else naming.spell.text(part.node, part.level) for part in parts)


def _lines(text: str, spot: Spot, depth: int) -> Iterator[str]:
    """A statement, in two lines if it is too long for one and says where to cut it."""
    whole = text.replace(",\n", ", ")
    if len(whole) + len(_INDENT) * depth < _COMMENT_COLUMN or ",\n" not in text:
        yield _line(whole, spot, depth)
        return
    first, second = text.split(",\n")
    yield _line(first + ",", spot, depth)
    yield _line(" " * (text.index("(") + 1) + second, spot, depth)


def _line(text: str, spot: Spot, depth: int) -> str:
    called = ", ".join(str(v.line) for v in spot.via)
    code = _INDENT * depth + text
    return f"{code:<{_COMMENT_COLUMN}} // {spot}{f' from {called}' if called else ''}"
