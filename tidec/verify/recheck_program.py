"""The form of a program that is no theorem: all fields and no other, every name declared, every expression over indices that are in scope.

A program that is a theorem is byte for byte one that was proved, and has this form already.
"""
from __future__ import annotations

import re

from tidec.verify.recheck_index import families
from tidec.verify.recheck_layout import MAX_INT64, Facts
from tidec.verify.recheck_theorems import canonical
from tidec.verify.recheck_words import tampered

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = ("M", "n", "j", "e", "top2", "all", "others")
_ARITY = {"where": 3, "not": 1, "top2": 1, "and": -1, "or": -1, **dict.fromkeys(("+", "-", "*", "//", "%", "wrap", "back", "<", "<=", "=="), 2)}
_CONDS = ("<", "<=", "==", "and", "or", "not")
_HERE = frozenset("Mnje")
_SIZE = frozenset("M")

# Of each kind of op: how many accesses it reads and writes, at which events it raises, for how many promises it waits, and between which blocks it is.
_OPS: dict[str, tuple[int, int, tuple[str, ...], int]] = {
    "copy": (1, 1, (), 0), "cast": (1, 1, (), 0), "put": (1, 1, ("then", "done"), 0), "sum": (2, 1, (), 0), "land": (1, 1, (), 0), "zero": (0, 1, (), 0),
    "read": (1, 0, (), 0), "free": (0, 1, (), 0), "signal": (0, 0, ("end",), 0), "wait": (0, 0, (), 1), "join": (0, 0, (), 0),
}
_STEPS = ("by_one", "doubling", "each", "run")
_SCOPES = ("self", "node", "lanes", "rail")
_KINDS = ("input", "output", "temp")
_BLOCKS = ("shard", "placed", "grad_slice", "slice", "partial", "out_slice", "grad_row", "row", "out_row")


class Form:
    """Checks the form of one plan's program. Every method raises C001 with the file."""

    def __init__(self, facts: Facts):
        self.facts, self.program = facts, facts.program
        self.dims: dict[str, int] = {}
        self.keys: dict[str, int] = {}

    def check(self, waits: list) -> None:
        """The whole program, and that the wait edges are those that its waits and raises give."""
        p = self.program
        self.fields(p, "program", "name", "lanes", "knobs", "buffers", "flags", "streams", "body", "covers", "premises")
        for stream in self.items(p["streams"]):
            self.fields(stream, "stream", "name", "role")
            self.name(stream["name"])
            self.need(stream["role"] == "every rank", "a stream has a role that this version does not know")
        self.streams = {s["name"] for s in p["streams"]}
        for b in self.items(p["buffers"]):
            self.buffer(b)
        for flag in self.items(p["flags"]):
            self.flag(flag)
        names = [x["name"] for x in (*p["buffers"], *p["flags"])]
        self.need(len(set(names)) == len(names) and len(self.streams) == len(p["streams"]), "two buffers, flags or streams have one name")
        for premise in self.items(p["premises"]):
            self.truth(premise, _SIZE)
        for cover in self.items(p["covers"]):
            self.cover(cover)
        self.body(p["body"], _HERE)
        ids = [f.op["id"] for f in families(p["body"])]
        self.need(ids == sorted(set(ids)), "two ops have one number, or they are not in order")
        self.edges(waits)

    # ---- declarations

    def buffer(self, b: dict) -> None:
        self.fields(b, "buffer", "name", "kind", "block", "dims", "per", "rests_at_zero", "holds", "source", "before", "found", "spot")
        self.name(b["name"])
        self.need(b["kind"] in _KINDS and b["block"] in _BLOCKS and type(b["rests_at_zero"]) is bool and bool(b["dims"]), "a buffer is of no known kind")
        for d in b["dims"]:
            self.dim(d, _SIZE)
            self.need(d["step"] == "by_one", "an index of a buffer does not advance by one")
        for name in self.items(b["per"]):
            self.name(name)
        block = _HERE | {f"#{d['name']}" for d in b["dims"]}
        use = block | {f"@{name}" for name in b["per"]}
        for x in self.items(b["holds"]):
            self.number(x, use)
        for x in self.items(b["source"]):
            self.coordinate(x, use)
        for x in self.items(b["before"]):
            self.number(x, _SIZE | {"@e", *(f"@{name}" for name in b["per"])})
        self.pairs(b["found"], block)
        self.spot(b["spot"])
        self.dims[b["name"]] = len(b["dims"])

    def flag(self, flag: dict) -> None:
        self.fields(flag, "flag", "name", "scope", "on", "box", "each", "spot")
        self.name(flag["name"])
        self.need(flag["scope"] in _SCOPES and type(flag["each"]) is bool, "a flag is of no known scope")
        for d in self.items(flag["on"]):
            self.dim(d, _SIZE)
        for d in self.items(flag["box"]):
            self.dim(d, _SIZE | {x["name"] for x in flag["on"]})
            self.need(d["step"] == "by_one", "a counted key does not advance by one")
        self.spot(flag["spot"])
        self.keys[flag["name"]] = len(flag["on"]) + len(flag["box"])

    def dim(self, d: dict, names: frozenset[str]) -> None:
        self.fields(d, "dim", "name", "lo", "hi", "step")
        self.name(d["name"])
        self.need(d["step"] in _STEPS, "an extent advances in no known way")
        self.number(d["lo"], names)
        self.number(d["hi"], names)

    def cover(self, c: dict) -> None:
        self.fields(c, "cover", "buffer", "ask", "found", "node", "lane", "key", "spot")
        self.need(c["buffer"] in self.dims, "a cover names no buffer")
        for d in self.items(c["ask"]):
            self.dim(d, _SIZE)
        names = _HERE | {f"#{d['name']}" for d in c["ask"]}
        self.pairs(c["found"], names)
        for x in (c["node"], c["lane"], *self.items(c["key"])):
            self.number(x, names)
        self.spot(c["spot"])

    # ---- ops

    def body(self, items: list, names: frozenset[str]) -> None:
        for item in self.items(items):
            kind = item.get("is") if isinstance(item, dict) else ""
            if kind == "when":
                self.fields(item, "when", "cond", "body", "spot")
                self.need(type(item["cond"]) is list, "a condition is settled already")
                self.truth(item["cond"], names)
                self.spot(item["spot"])
                self.body(item["body"], names)
            elif kind == "loop":
                self.loop(item, names)
            else:
                self.op(item, names)

    def loop(self, item: dict, names: frozenset[str]) -> None:
        self.fields(item, "loop", "name", "lo", "hi", "step", "over_lanes", "at_most", "body", "spot")
        self.name(item["name"])
        self.need(item["name"] not in names and item["step"] in _STEPS and type(item["over_lanes"]) is bool, "a loop is not one of the language's")
        self.need(type(item["at_most"]) is int and item["at_most"] >= 0, "a loop says no bound of its trips")
        self.need(item["step"] != "doubling" or type(item["lo"]) is int and item["lo"] >= 1, "a loop cannot double from where it starts")
        for x in (item["lo"], item["hi"]):
            self.number(x, names)
        self.spot(item["spot"])
        self.body(item["body"], names | {item["name"]})
        if item["step"] == "run":
            self.run(item)
        else:
            self.need(item["step"] != "each" or bool(item["body"]), "an unordered set is empty")

    def run(self, loop: dict) -> None:
        """A strided run is one copy; in each of its blocks one index grows evenly with the loop's, and nothing else changes."""
        body, name = loop["body"], loop["name"]
        self.need(len(body) == 1 and body[0].get("kind") == "copy", "a strided run holds something else than one copy")
        for c in (*body[0]["reads"], *body[0]["writes"]):
            self.need(not any(name in _symbols(x) for x in (c["node"], c["lane"], c["call"])), "a strided run does not stay on one rank and in one call")
            slopes = [s for s in (self.slope(k, name) for k in c["key"]) if s]
            self.need(len(slopes) == 1 and slopes[0] >= 1, "a strided run does not advance by one growing index")

    def slope(self, x: object, name: str) -> int:
        if type(x) is not list or name not in _symbols(x):
            return int(x == name)
        self.need(x[0] in ("+", "-", "*"), "an index of a strided run is not linear")
        if x[0] == "*":
            return x[1] * self.slope(x[2], name)
        return self.slope(x[1], name) + (1 if x[0] == "+" else -1) * self.slope(x[2], name)

    def op(self, op: dict, names: frozenset[str]) -> None:
        self.fields(op, "op", "id", "kind", "stream", "reads", "writes", "raises", "waits", "words", "seed", "context", "spot")
        self.need(op["kind"] in _OPS and op["stream"] in self.streams and type(op["id"]) is int and op["id"] >= 0, "an op is of no known kind or stream")
        got = (len(self.items(op["reads"])), len(self.items(op["writes"])), tuple(r["event"] for r in self.items(op["raises"])), len(self.items(op["waits"])))
        self.need(got == _OPS[op["kind"]], f"a {op['kind']} reads, writes, raises or awaits something else than its kind does")
        for c in (*op["reads"], *op["writes"]):
            self.fields(c, "cell", "buffer", "key", "node", "lane", "call", "use")
            self.need(c["buffer"] in self.dims and len(c["key"]) == self.dims[c["buffer"]], f"a {op['kind']} names no block")
            for x in (*c["key"], c["lane"]):
                self.coordinate(x, names)
            for x in (c["node"], c["call"], *self.items(c["use"])):
                self.number(x, names)
        for r in op["raises"]:
            self.fields(r, "raise", "event", "promise")
        for p in (*(r["promise"] for r in op["raises"]), *op["waits"]):
            self.fields(p, "promise", "flag", "key", "node", "lane", "call")
            self.need(p["flag"] in self.keys and len(p["key"]) == self.keys[p["flag"]], f"a {op['kind']} names no promise")
            for x in (*p["key"], p["node"], p["lane"], p["call"]):
                self.number(x, names)
        self.pairs(op["words"], names)
        self.truth(op["seed"], names)
        self.number(op["context"], names)
        self.need(op["kind"] in ("sum", "land") or op["seed"] is False, f"a {op['kind']} has no seed")
        self.need(op["kind"] == "put" or op["context"] == 0, f"a {op['kind']} has no context")
        self.spot(op["spot"])

    def edges(self, waits: list) -> None:
        """One wait edge a wait, in order, as the wait, the box of its flag and the ops that raise the flag give it."""
        ops = [f.op for f in families(self.program["body"])]
        flags = {f["name"]: f for f in self.program["flags"]}
        wanted = []
        for op in ops:
            for w in op["waits"]:
                flag, key = flags[w["flag"]], w["key"]
                num_on = len(key) if flag["each"] else len(flag["on"])
                on = {d["name"]: k for d, k in zip(flag["on"], key)}
                box = [
                    {"is": "counted", "key": k, "low": _with(d["lo"], on), "high": _with(d["hi"], on)}
                    for d, k in zip([] if flag["each"] else flag["box"], key[num_on:])
                ]
                kept = [{"is": "keeper", "op": o["id"], "event": r["event"]} for o in ops for r in o["raises"] if r["promise"]["flag"] == w["flag"]]
                place = {key: w[key] for key in ("node", "lane", "call")}
                wanted.append({"is": "waitedge", "op": op["id"], "flag": w["flag"], "on": key[:num_on], **place, "box": box, "kept_by": kept})
        self.need(canonical(waits) == canonical(wanted), "its wait edges are not those of its waits")

    # ---- values

    def fields(self, value: object, kind: str, *names: str) -> None:
        self.need(isinstance(value, dict) and value.keys() == {"is", *names} and value["is"] == kind, f"a {kind} has not the fields that it should have")

    def items(self, value: object) -> list:
        self.need(isinstance(value, list), "a list is missing")
        return value

    def name(self, value: object) -> None:
        self.need(isinstance(value, str) and _NAME.fullmatch(value) and value not in _RESERVED, "a name is missing")

    def spot(self, value: object) -> None:
        self.need(isinstance(value, list) and bool(value) and all(isinstance(x, str) for x in value), "a line of the schedule is missing")

    def pairs(self, value: object, names: frozenset[str]) -> None:
        for word, x in self.items(value):
            self.need(isinstance(word, str), "a word is missing")
            self.number(x, names)

    def coordinate(self, x: object, names: frozenset[str]) -> None:
        if x not in ("all", "others"):
            self.number(x, names)

    def number(self, x: object, names: frozenset[str]) -> None:
        self.need(self._type(x, names) is int, "an index is a condition")

    def truth(self, x: object, names: frozenset[str]) -> None:
        self.need(self._type(x, names) is bool, "a condition is an index")

    def _type(self, x: object, names: frozenset[str]) -> type:
        """int or bool."""
        if type(x) is int:
            self.need(abs(x) <= MAX_INT64, "a number has more than 64 bits")
        if type(x) in (int, bool):
            return type(x)
        if type(x) is str:
            self.need(x in names, f"there is no index {x:.20} here")
            return int
        self.need(type(x) is list and bool(x) and type(x[0]) is str and x[0] in _ARITY, "there is no such operator")
        op, *args = x
        self.need(_ARITY[op] == len(args) or _ARITY[op] < 0 < len(args), f"{op} has another number of arguments")
        types = [self._type(a, names) for a in args]
        wanted = [bool] * len(args) if op in ("and", "or", "not") else [bool, int, int] if op == "where" else [int] * len(args)
        const = {"*": 0, "//": 1, "%": 1}.get(op)
        is_linear = const is None or type(args[const]) is int and (const == 0 or args[1] >= 1)
        self.need(types == wanted and is_linear, f"{op} is applied to what it does not take")
        return bool if op in _CONDS else int

    def need(self, holds: object, reason: str) -> None:
        if not holds:
            raise tampered(self.facts.file, reason)


def _symbols(x: object) -> set[str]:
    if type(x) is str:
        return {x}
    return set().union(*map(_symbols, x[1:])) if type(x) is list else set()


def _with(x: object, names: dict) -> object:
    """The expression with names replaced by what they stand for."""
    if type(x) is str:
        return names.get(x, x)
    return [x[0], *(_with(a, names) for a in x[1:])] if type(x) is list else x


def check_program(facts: Facts, waits: list) -> None:
    """The form of a program and of its wait edges. Raises C001."""
    Form(facts).check(waits)
