"""An op under its loops is a family: its points, its domain, and what comes before what.

M nodes, L lanes, n node, j lane, e call. One obligation about a pair of families speaks of every rank, wave, part and call.
"""
from __future__ import annotations

from collections.abc import Iterable

from tidec.index import Expr, Node, Op as IndexOp
from tidec.schedule.program import (
    ALL, OTHERS, Cell, Dim, Event, Every, Flag, Item, Kind, Loop, Op, OpKind, Program, Promise, Statement, Step, statements,
)
from tidec.verify.obligation import Instance
from tidec.verify.terms import Bool, Int, Term, Terms, Values

SETS = (Step.EACH, Step.RUN)
NEVER = 1 << 60      # the id of a join that nobody wrote


class World:
    """One branch of a program with its node count as a term: the families, who raises which flag, and the relations between points."""

    def __init__(self, program: Program, terms: Terms, nodes: Int, dropped: int = -1):
        self.program, self.terms, self.nodes = program, terms, nodes
        self.lanes = program.lanes
        self.statements = tuple(s for s in statements(program) if s.op.id != dropped)
        self.by_id = {s.op.id: s for s in self.statements}
        self.buffers = {b.name: b for b in program.buffers}
        self.flags = {f.name: f for f in program.flags}
        self.waits: dict[str, list[Statement]] = {}
        self.raisers: dict[str, list[tuple[Statement, Event, Promise]]] = {f.name: [] for f in program.flags}
        self.accesses: dict[str, list[tuple[Statement, Cell, bool]]] = {}
        for s in self.statements:
            for _ in s.op.waits:
                self.waits.setdefault(s.op.stream, []).append(s)
            for r in s.op.raises:
                self.raisers[r.promise.flag].append((s, r.event, r.promise))
            for cell in s.op.reads:
                self.accesses.setdefault(cell.buffer, []).append((s, cell, False))
            for cell in s.op.writes:
                self.accesses.setdefault(cell.buffer, []).append((s, cell, True))
        self._join_of: dict[int, int] = {}
        self._find_joins(program.body, NEVER)

    def _find_joins(self, items: tuple[Item, ...], outer: int) -> None:
        """For every unordered set, the id of the join that ends it (the one of the set around it where it has none)."""
        for i, item in enumerate(items):
            if isinstance(item, Op):
                continue
            join = outer
            if isinstance(item, Loop) and item.step in SETS:
                stream = _first_op(item).stream
                join = next((x.id for x in items[i + 1 :] if isinstance(x, Op) and x.id in self.by_id and x.kind is OpKind.JOIN and x.stream == stream), outer)
                self._join_of[id(item)] = join
            self._find_joins(item.body, join if isinstance(item, Loop) and item.step in SETS else outer)

    # ---- points

    def point(self, s: Statement, tag: str, **fixed: Int) -> Values:
        """Fresh unknowns for the indices of a family, named `tag.index`; some may be fixed, and a loop of one trip is."""
        fixed = {**{name: lo for name, lo, hi in self.small_loops(s) if hi - lo == 1}, **fixed}
        return Values({"M": self.nodes, **{x: fixed[x] if x in fixed else self.terms.var(f"{tag}.{x}") for x in ("n", "j", *s.names)}})

    def small_loops(self, s: Statement) -> list[tuple[str, int, int]]:
        """The loops with known bounds that do not run over lanes: name, first, behind the last."""
        return [(l.name, l.lo, l.hi) for l in s.loops if isinstance(l.lo, int) and isinstance(l.hi, int) and not l.over_lanes and l.step is not Step.DOUBLING]

    def hard(self, *points: tuple[Statement, Values]) -> tuple[tuple[Term, int], ...]:
        """What a claim about points is taken apart by if it is too hard: loops of a few trips, and the parity of the first long one of each."""
        out: dict[Term, int] = {}
        for s, v in points:
            small = {name: hi - lo for name, lo, hi in self.small_loops(s)}
            long = [l.name for l in s.loops if l.name not in small and not l.over_lanes and l.step is Step.BY_ONE][:1]
            for name, m in (*small.items(), *((x, 2) for x in long)):
                if isinstance(v[name], Term):
                    out[v[name]] = m
        return tuple(out.items())

    def rank(self, tag: str, **fixed: Int) -> Values:
        """A rank and a call of their own."""
        return Values({"M": self.nodes, **{x: fixed[x] if x in fixed else self.terms.var(f"{tag}.{x}") for x in ("n", "j", "e")}})

    def in_rank(self, v: Values) -> list[Bool]:
        t = self.terms
        return [t.le(0, v["n"]), t.lt(v["n"], self.nodes), t.le(0, v["j"]), t.lt(v["j"], self.lanes)]

    def domain(self, s: Statement, v: Values, conds: bool = True) -> list[Bool]:
        """The point is one of the family's: its rank exists, its loops run there, its conditions hold."""
        t = self.terms
        out = self.in_rank(v)
        for loop in s.loops:
            x = v[loop.name]
            if loop.step is Step.DOUBLING:
                out += [t.le(1, x), t.pow2(x)]
            else:
                out.append(t.le(t.read(loop.lo, v), x))
            out.append(t.lt(x, t.read(loop.hi, v)))
        return out + ([t.read(c, v) for c in s.conds] if conds else [])

    def same_point(self, s: Statement, u: Values, v: Values) -> Bool:
        return self.terms.every(self.terms.eq(u[x], v[x]) for x in ("n", "j", *s.names))

    def same_rank(self, u: Values, v: Values) -> Bool:
        return self.terms.every((self.terms.eq(u["n"], v["n"]), self.terms.eq(u["j"], v["j"])))

    def instance(self, role: str, s: Statement, v: Values, event: Event = Event.END) -> Instance:
        return Instance(role, s.op.id, v, s.names[1:], event)

    def read(self, node: object, v: Values) -> Int | Bool:
        return self.terms.read(node, v)

    def reads(self, nodes: Iterable[object], v: Values) -> list[Int]:
        return [self.terms.read(x, v) for x in nodes]

    # ---- order

    def shared(self, a: Statement, b: Statement) -> list[Loop]:
        """The loops that both stand in."""
        out: list[Loop] = []
        for x, y in zip(a.loops, b.loops):
            if x is not y:
                break
            out.append(x)
        return out

    def position(self, a: Statement, u: Values, b: Statement, v: Values) -> Bool:
        """The host issues a before b, if both are of one rank: the call, the shared loops, then the text."""
        names = ["e", *(l.name for l in self.shared(a, b))]
        return self._lexicographic(names, (), a, u, b, v, a.op.id < b.op.id)

    def common_position(self, a: Statement, u: Values, b: Statement, v: Values) -> tuple[list[Bool], Bool]:
        """What is known of the turns of two calls in the one order of the calls of all collectives, and that a is issued before b in it.

        The turns of a collective's calls grow with the calls; between them may stand any calls of any other collective, whole.
        """
        t = self.terms
        mine, its = t.var("first.turn"), t.var("then.turn")
        known = [t.implies(t.lt(u["e"], v["e"]), t.lt(mine, its)), t.implies(t.eq(u["e"], v["e"]), t.eq(mine, its)), t.implies(t.lt(v["e"], u["e"]), t.lt(its, mine))]
        here = self._lexicographic([l.name for l in self.shared(a, b)], (), a, u, b, v, a.op.id < b.op.id)
        return known, t.some((t.lt(mine, its), t.every((t.eq(mine, its), here))))

    def program_order(self, a: Statement, u: Values, b: Statement, v: Values) -> Bool:
        """a ends before b starts because both are of one stream: position order without the freedom of unordered sets. Ranks are not compared."""
        shared = self.shared(a, b)
        free = {l.name for l in shared if l.step in SETS}
        ends = [self._join_of[id(l)] for l in a.loops if l.step in SETS]
        if NEVER in ends:
            free |= {"e", *(l.name for l in shared)}
        inner = a.loops[len(shared) :]
        joined = all(self._join_of[id(l)] <= b.op.id for l in inner if l.step in SETS)
        return self._lexicographic(["e", *(l.name for l in shared)], free, a, u, b, v, a.op.id < b.op.id and joined)

    def _lexicographic(self, names: list[str], free: Iterable[str], a: Statement, u: Values, b: Statement, v: Values, last: bool) -> Bool:
        t = self.terms
        result: Bool = last
        for x in reversed(names):
            less = False if x in free else t.lt(u[x], v[x])
            result = t.some((less, t.every((t.eq(u[x], v[x]), result))))
        return result

    # ---- cells and uses

    def same_cell(self, a: Cell, u: Values, b: Cell, v: Values) -> list[Bool]:
        """Both accesses touch one block of one rank. Inputs are another tensor in every call."""
        t = self.terms
        out = [t.eq(self.read(a.node, u), self.read(b.node, v))]
        if a.lane is not ALL and b.lane is not ALL:
            out.append(t.eq(self.read(a.lane, u), self.read(b.lane, v)))
        for x, y in zip(a.key, b.key, strict=True):
            if isinstance(x, Every) and isinstance(y, Every):
                continue
            if isinstance(x, Every):
                out += [t.no(t.eq(self.read(y, v), u["j"]))] if x is OTHERS else []
            elif isinstance(y, Every):
                out += [t.no(t.eq(self.read(x, u), v["j"]))] if y is OTHERS else []
            else:
                out.append(t.eq(self.read(x, u), self.read(y, v)))
        if self.buffers[a.buffer].kind is Kind.INPUT:
            out.append(t.eq(self.read(a.call, u), self.read(b.call, v)))
        return out

    def use(self, s: Statement, c: Cell, v: Values) -> tuple[Int, ...]:
        """Which use of the block the access belongs to; freeing an input is the use after all others of its call."""
        use = (self.read(c.call, v), *self.reads(c.use, v))
        return (*use, 1 if s.op.kind is OpKind.FREE else 0) if self.buffers[c.buffer].kind is Kind.INPUT else use

    def end_of(self, s: Statement, writes: bool) -> Event:
        """The event after which the access is over: a put's source is free at DONE, its data is there at THEN."""
        if s.op.kind is not OpKind.PUT:
            return Event.END
        return Event.THEN if writes else Event.DONE

    # ---- flags

    def in_box(self, dims: tuple[Dim, ...], key: Iterable[Int]) -> list[Bool]:
        """The key is one of those that the flag (or a cover) declares."""
        t = self.terms
        at: dict[str, Int] = {"M": self.nodes}
        out: list[Bool] = []
        for dim, x in zip(dims, key, strict=True):
            v = Values(at)
            if dim.step is Step.DOUBLING:
                out += [t.le(1, x), t.pow2(x)]
            else:
                out.append(t.le(t.read(dim.lo, v), x))
            out.append(t.lt(x, t.read(dim.hi, v)))
            at[dim.name] = x
        return out

    def legitimate(self, flag: Flag, me: Values, node: Int, lane: Int) -> list[Bool]:
        """Rank (node, lane) is one that the flag's scope lets `me` raise it for, or hear it from."""
        t = self.terms
        here = t.eq(node, me["n"])
        mine = t.eq(lane, me["j"])
        exists = [t.le(0, node), t.lt(node, self.nodes), t.le(0, lane), t.lt(lane, self.lanes)]
        match flag.scope.value:
            case "self":
                return [here, mine]
            case "node":
                return [here, *exists]
            case "lanes":
                return [here, t.no(mine), *exists]
        return [mine, t.no(here), *exists]

    def is_symbol(self, node: object) -> str:
        """The name of a bare symbol, else an empty text."""
        return node.args[0] if isinstance(node, Expr) and node.op is IndexOp.SYM else ""


def _first_op(item: Item) -> Op:
    return item if isinstance(item, Op) else _first_op(item.body[0])


def mentions(node: object, name: str) -> bool:
    """The symbol stands in the expression."""
    return isinstance(node, Node) and (node.args[0] == name if node.op is IndexOp.SYM else any(mentions(a, name) for a in node.args))


def solve(terms: Terms, node: object, name: str, value: Int, values: Values) -> Int | None:
    """The value of the symbol for which the expression equals `value`, for the few shapes that schedules use; a guess, always checked by its user."""
    if not isinstance(node, Node) or not mentions(node, name):
        return None
    if node.op is IndexOp.SYM:
        return value
    args = node.args

    def other(x: object) -> Int | None:
        try:
            return terms.read(x, values)
        except KeyError:
            return None

    if node.op in (IndexOp.ADD, IndexOp.SUB):
        inner, rest = (args[0], args[1]) if mentions(args[0], name) else (args[1], args[0])
        known = other(rest)
        if known is None:
            return None
        if node.op is IndexOp.ADD:
            return solve(terms, inner, name, terms.sub(value, known), values)
        return solve(terms, inner, name, terms.add(value, known) if inner is args[0] else terms.sub(known, value), values)
    if node.op is IndexOp.MOD:
        result = solve(terms, args[0], name, value, values)
        return None if result is None else terms.mod(result, args[1])
    if node.op in (IndexOp.WRAP, IndexOp.BACK):
        result, m = solve(terms, args[0], name, value, values), other(args[1])
        if result is None or m is None:
            return None
        return terms.ite(terms.lt(result, 0), terms.add(result, m), terms.ite(terms.le(m, result), terms.sub(result, m), result))
    return None
