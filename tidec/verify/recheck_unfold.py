"""A program unfolded on a small topology: every op of every rank in a few calls as events, and what comes directly before each.

M nodes, n node, j lane, e call. An op is one event; a put is three: its start, DONE (source reusable) and THEN (arrived). Ops of one stream follow each
other; the iterations of an unordered set (`each`, `run`) follow what stands before the set, and only a join follows them. A wait follows the raise that
brings its counter to the threshold; thresholds are counted here, from the declared box of the flag, and compared with the plan's wait edges.
"""
from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from tidec.verify.recheck_index import Table, TooLarge, families, read, trips
from tidec.verify.recheck_layout import Facts, extents
from tidec.verify.recheck_words import refuted

CALLS = 4
MAX_POINTS = 150_000
START, DONE, THEN = 0, 1, 2
_EVENT = {"end": START, "done": DONE, "then": THEN}
_UNORDERED = ("each", "run")

Rank = tuple[int, int]
Place = tuple


@dataclass(frozen=True, slots=True)
class Point:
    """One op of one rank in one call. reads, writes: the places of each access; a place is buffer, node, lane, call of an input (-1 of others), key."""

    op: dict
    rank: Rank
    call: int
    position: tuple[int, ...]
    reads: tuple[tuple[Place, ...], ...]
    writes: tuple[tuple[Place, ...], ...]
    is_seed: bool

    def __str__(self) -> str:
        return f"call {self.call} {self.op['kind']}#{self.op['id']} of rank {self.rank[0]}.{self.rank[1]}"


@dataclass(frozen=True, slots=True)
class Raised:
    """A raise of a counter: the event that does it, the value that the box gives it, and over which context a put does it."""

    event: int
    value: int
    context: int


class Unfolding:
    """events[x] = (its point, START, DONE or THEN); after[x]: the events directly before x; raises: of each counter, in the order of its raiser."""

    def __init__(self, facts: Facts, nodes: int, waits: list):
        self.facts, self.nodes = facts, nodes
        self.events: list[tuple[Point, int]] = []
        self.after: list[list[int]] = []
        self.raises: dict[tuple, list[Raised]] = {}
        self._waiting: list[tuple[int, tuple, int, bool]] = []
        self._flags = {f["name"]: f for f in facts.program["flags"]}
        self._buffers = {b["name"]: (b["kind"] == "input", [range(low, low + count) for low, count in zip(*extents(b, nodes))]) for b in facts.program["buffers"]}
        self._edges = {w["op"]: w for w in waits}
        ranks = list(product(range(nodes), range(facts.lanes)))
        table = Table({"M": nodes, "n": 0, "j": 0, "e": 1})
        one = sum(table.under(f.path).count for f in families(facts.program["body"]))
        if one * len(ranks) * CALLS > MAX_POINTS:
            raise TooLarge(f"{len(ranks)} ranks have {one} ops each in a call: more than {MAX_POINTS} in {CALLS} calls")
        for n, j in ranks:
            self._tails: dict[str, tuple[int, ...]] = {}
            self._open: dict[str, tuple[int, ...]] = {}
            for e in range(CALLS):
                self._walk(facts.program["body"], {"M": nodes, "n": n, "j": j, "e": e}, (e,))
        for event, counter, value, is_before in self._waiting:
            self._serve(event, counter, value, is_before)

    # ---- one rank

    def _walk(self, body: list, env: dict, path: tuple[int, ...]) -> None:
        for i, item in enumerate(body):
            if item["is"] == "op":
                self._op(item, env, (*path, i))
            elif item["is"] == "when":
                if read(item["cond"], env):
                    self._walk(item["body"], env, (*path, i))
            else:
                found = trips(item, read(item["lo"], env), read(item["hi"], env))
                if item["at_most"] and len(found) > item["at_most"]:
                    raise refuted("V102", self.facts.file, f"the loop over {item['name']} runs {len(found)} times, and says at most {item['at_most']}")
                if item["step"] in _UNORDERED:
                    self._set(item, found, env, (*path, i))
                else:
                    for x in found:
                        self._walk(item["body"], {**env, item["name"]: x}, (*path, i, x))

    def _set(self, loop: dict, found: range | list[int], env: dict, path: tuple[int, ...]) -> None:
        stream = families(loop["body"])[0].op["stream"]
        before, ends = self._tails.get(stream, ()), self._open.pop(stream, ())
        for x in found:
            self._tails[stream] = before
            self._walk(loop["body"], {**env, loop["name"]: x}, (*path, x))
            if self._tails[stream] is not before:
                ends += self._tails[stream]
            ends += self._open.pop(stream, ())
        self._tails[stream], self._open[stream] = before, ends

    def _op(self, op: dict, env: dict, position: tuple[int, ...]) -> None:
        rank, e, stream = (env["n"], env["j"]), env["e"], op["stream"]
        reads = tuple(self._places(op, c, env) for c in op["reads"])
        writes = tuple(self._places(op, c, env) for c in op["writes"])
        context = read(op["context"], env)
        if not 0 <= context < self.facts.stripes:
            raise refuted("V102", self.facts.file, f"{op['kind']}#{op['id']} names RMA context {context}, which is not one of {self.facts.stripes}")
        point = Point(op, rank, e, position, reads, writes, bool(read(op["seed"], env)))
        before = self._tails.get(stream, ())
        if op["kind"] == "join":
            before += self._open.pop(stream, ())
        start = self._event(point, START, list(before))
        self._tails[stream] = (start,)
        if op["kind"] == "put":
            self._event(point, DONE, [start])
            self._event(point, THEN, [start])
        for kept in op["raises"]:
            counter, value, _ = self._count(op, kept["promise"], env, is_wait=False)
            self.raises.setdefault(counter, []).append(Raised(start + _EVENT[kept["event"]], value, context))
        for wanted in op["waits"]:
            counter, value, call = self._count(op, wanted, env, is_wait=True)
            if self._threshold(self._edges[op["id"]], env) != (counter, value):
                raise refuted("V202", self.facts.file, f"the wait edge of wait#{op['id']} has not the threshold that {wanted['flag']} gives it")
            self._waiting.append((start, counter, value, call < 0))

    def _event(self, point: Point, what: int, after: list[int]) -> int:
        self.events.append((point, what))
        self.after.append(after)
        return len(self.events) - 1

    def _places(self, op: dict, cell: dict, env: dict) -> tuple[Place, ...]:
        """The places of an access, lanes slower than keys. Raises V102, V103."""
        is_input, ranges = self._buffers[cell["buffer"]]
        node, call = read(cell["node"], env), read(cell["call"], env) if is_input else -1
        spreads = [range(self.facts.lanes), *ranges]
        over = []
        for x, every in zip((cell["lane"], *cell["key"]), spreads, strict=True):
            own = () if x in ("all", "others") else (read(x, env),)
            if own and own[0] not in every or not own and x == "others" and every != range(self.facts.lanes):
                raise refuted("V102", self.facts.file, f"{op['kind']}#{op['id']} accesses {cell['buffer']} outside what is declared", reason=f"index {own}")
            over.append(own or [k for k in every if x == "all" or k != env["j"]])
        is_far = op["kind"] == "put" and cell is op["writes"][0]
        if not 0 <= node < self.nodes or (node == env["n"]) is is_far or is_far and over[0] != (env["j"],):
            raise refuted("V103", self.facts.file, f"{op['kind']}#{op['id']} leaves its node or its rail", reason=f"it accesses {cell['buffer']} of node {node}")
        return tuple((cell["buffer"], node, lane, call, *key) for lane, *key in product(*over))

    # ---- counters

    def _count(self, op: dict, promise: dict, env: dict, *, is_wait: bool) -> tuple[tuple, int, int]:
        """(counter, the value at which the promise is kept, its call). Raises V202, V203."""
        flag, mine = self._flags[promise["flag"]], (env["n"], env["j"])
        other, call = (read(promise["node"], env), read(promise["lane"], env)), read(promise["call"], env)
        key = tuple(read(k, env) for k in promise["key"])
        owner, raiser = (mine, other) if is_wait else (other, mine)
        dims, num_on = flag["on"] + flag["box"], len(flag["on"])
        at, size, index = {"M": self.nodes}, 1, 0
        for i, (k, d) in enumerate(zip(key, dims, strict=True)):
            low, high = read(d["lo"], at), read(d["hi"], at)
            if not low <= k < high or d["step"] == "doubling" and k & (k - 1):
                raise refuted("V203", self.facts.file, f"{op['kind']}#{op['id']} names key {k} of flag {flag['name']}, which is not declared")
            if i < num_on:
                at[d["name"]] = k
            elif not flag["each"]:
                size, index = size * (high - low), index * (high - low) + k - low
        if not self._in_scope(flag["scope"], raiser, owner):
            raise refuted("V203", self.facts.file, f"{op['kind']}#{op['id']} names flag {flag['name']} of a rank that has none of it")
        chosen = key if flag["each"] else key[:num_on]
        return (flag["name"], owner, raiser, chosen), call + 1 if flag["each"] else call * size + index + 1, call

    def _threshold(self, edge: dict, env: dict) -> tuple[tuple, int]:
        """The same, from the plan's wait edge."""
        call, size, index = read(edge["call"], env), 1, 0
        for b in edge["box"]:
            low, high = read(b["low"], env), read(b["high"], env)
            size, index = size * (high - low), index * (high - low) + read(b["key"], env) - low
        raiser = (read(edge["node"], env), read(edge["lane"], env))
        return (edge["flag"], (env["n"], env["j"]), raiser, tuple(read(k, env) for k in edge["on"])), call * size + index + 1

    def _in_scope(self, scope: str, raiser: Rank, owner: Rank) -> bool:
        if not all(0 <= n < self.nodes and 0 <= j < self.facts.lanes for n, j in (raiser, owner)):
            return False
        same_node, same_lane = raiser[0] == owner[0], raiser[1] == owner[1]
        return {"self": same_node and same_lane, "node": same_node, "lanes": same_node and not same_lane, "rail": same_lane and not same_node}[scope]

    def _serve(self, event: int, counter: tuple, value: int, is_before: bool) -> None:
        """The edge from the raise that brings the counter to the threshold. Raises V203, V204."""
        if is_before and value <= 0:
            return
        point, raises = self.events[event][0], self.raises.get(counter, [])
        if not 0 < value <= len(raises):
            raise refuted("V203", self.facts.file, f"a wait for {counter[0]} is never served", example=(str(point), f"it waits for {value}, there are {len(raises)}"))
        source = raises[value - 1].event
        if self.events[source][0].position >= point.position:
            raise refuted("V204", self.facts.file, f"a wait for {counter[0]} stands before its producer", example=(str(point), str(self.events[source][0])))
        self.after[event].append(source)
