"""A stored plan read back: data only, nothing in it is ever run.

Every value is read by its field's own reader, names are identifiers, expressions use the symbols in scope and have types that fit. What
the JSON says beyond the program, the shapes and the node count is derived again; if the canonical JSON of the plan is not the text, byte
for byte, the text is refused.
"""
from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import TypeVar

from tidec.errors import Diagnostic, Spot, TidecError
from tidec.index import Cond, Index, Node, Op as Sign, Truth, from_json
from tidec.inputs.ask import Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.document import MAX_INT64
from tidec.inputs.knobs import MAX_CHUNKS, MAX_PARTS, MAX_STRIPES
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import MAX_LANES, MAX_RANKS
from tidec.plan.blocks import GRADIENTS
from tidec.plan.ir import SCHEMA, Plan
from tidec.plan.layout import lay_out
from tidec.schedule.program import (
    Block, Buffer, Cell, Coord, Cover, Dim, Event, Every, Flag, Item, Kind, Loop, Op, OpKind, Program, Promise, Raise, Scope, Step, Stream, When,
)

E = TypeVar("E", bound=Enum)
T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPOT = re.compile(r"(.+):([1-9][0-9]{0,8})")
_RESERVED = ("M", "n", "j", "e", "top2", "all", "others")
_SIZE = frozenset("M")
_HERE = frozenset("Mnje")
Names = frozenset[str]


def plan_from_json(text: str) -> Plan:
    """The plan that `Plan.to_json` spelt; it has no names of groups, and its spots have lines but no text.

    Raises P002 where the text is not exactly the canonical JSON of a plan; P005, V105 or V402 where its shapes, ops or arena cannot be.
    """
    try:
        root = json.loads(text)
        plan = _plan(root)
    except ValueError as error:
        raise _bad(f"it is not JSON, or not an expression: {error}") from None
    except RecursionError:
        raise _bad("it is nested too deep") from None
    if plan.to_json() != text:
        raise _bad("its numbers do not follow from its program and its shapes, or it is not spelt canonically")
    return plan


def _plan(root: object) -> Plan:
    if not isinstance(root, dict) or root.get("schema") != SCHEMA:
        raise _bad(f'its schema is not "{SCHEMA}"')
    nodes, lanes = _integer(root.get("nodes"), 1, MAX_RANKS), _integer(root.get("lanes"), 1, MAX_LANES)
    collective, lowering = _enum(Collective, root.get("collective")), _enum(Lowering, root.get("lowering"))
    program = _program(root.get("program"))
    is_reduction = any(b.block in GRADIENTS for b in program.buffers)
    if program.lanes != lanes or nodes * lanes > MAX_RANKS or is_reduction is not (collective is Collective.REDUCE_SCATTER):
        raise _bad("its program is for another collective or another number of lanes")
    params, stored = [], []
    for value in _items(root.get("params")):
        if not isinstance(value, dict):
            raise _bad("a parameter is not an object")
        shape = (_integer(value.get("rows")), _integer(value.get("row_elems")))
        params.append(Parameter(_string(value.get("name")), shape, _enum(Dtype, value.get("gathered")), _boolean(value.get("is_trainable"))))
        stored.append(_enum(Dtype, value.get("stored")))
    if len({p.dtype for p in params if p.requires_grad or not is_reduction}) != 1 or len({p.name for p in params}) < len(params):
        raise _bad("its parameters differ in type, or share a name")
    layout = lay_out(Group("stored", 1, tuple(params)), nodes * lanes)
    return Plan(collective, nodes, lowering, program, layout, tuple(stored), tuple(p.dtype for p in params))


def _program(value: object) -> Program:
    f = _fields(value, Program)
    knobs = tuple((_name(name), _knob(x)) for name, x in (_items(pair, 2) for pair in _items(f["knobs"])))
    if not 1 <= _integer(dict(knobs).get("n_part", 1)) <= MAX_PARTS:
        raise _bad("its n_part is out of range")
    chunks, stripes = (_integer(dict(knobs).get(name, 1), 1, most) for name, most in (("chunks", MAX_CHUNKS), ("stripes", MAX_STRIPES)))
    if chunks % stripes:
        raise _bad("its stripes do not divide its chunks")
    return Program(
        _name(f["name"]), _integer(f["lanes"], 1, MAX_LANES), knobs, _all(_buffer, f["buffers"]), _all(_flag, f["flags"]), _all(_stream, f["streams"]),
        _body(f["body"], _HERE), _all(_cover, f["covers"]), tuple(_truth(p, _SIZE) for p in _items(f["premises"])),
    )


def _buffer(value: object) -> Buffer:
    f = _fields(value, Buffer)
    dims, per = tuple(_dim(d, _SIZE) for d in _items(f["dims"])), _all(_name, f["per"])
    if not dims:
        raise _bad("a buffer has no dimension")
    block = _HERE | {"#" + d.name for d in dims}
    use = block | {"@" + p for p in per}
    return Buffer(
        _name(f["name"]), _enum(Kind, f["kind"]), _enum(Block, f["block"]), dims, per, _boolean(f["rests_at_zero"]),
        tuple(_index(x, use) for x in _items(f["holds"])), tuple(_coord(x, use) for x in _items(f["source"])),
        tuple(_index(x, _SIZE | {"@e", *("@" + p for p in per)}) for x in _items(f["before"])), _words(f["found"], block), _spot(f["spot"]),
    )


def _flag(value: object) -> Flag:
    f = _fields(value, Flag)
    on = tuple(_dim(d, _SIZE) for d in _items(f["on"]))
    box = tuple(_dim(d, _SIZE | {d.name for d in on}) for d in _items(f["box"]))
    return Flag(_name(f["name"]), _enum(Scope, f["scope"]), on, box, _boolean(f["each"]), _spot(f["spot"]))


def _dim(value: object, names: Names) -> Dim:
    f = _fields(value, Dim)
    return Dim(_name(f["name"]), _index(f["lo"], names), _index(f["hi"], names), _enum(Step, f["step"]))


def _stream(value: object) -> Stream:
    f = _fields(value, Stream)
    return Stream(_name(f["name"]), _string(f["role"]))


def _cover(value: object) -> Cover:
    f = _fields(value, Cover)
    ask = tuple(_dim(d, _SIZE) for d in _items(f["ask"]))
    names = _HERE | {"#" + d.name for d in ask}
    return Cover(
        _name(f["buffer"]), ask, _words(f["found"], names), _index(f["node"], names), _index(f["lane"], names),
        tuple(_index(k, names) for k in _items(f["key"])), _spot(f["spot"]),
    )


def _body(value: object, names: Names) -> tuple[Item, ...]:
    return tuple(_item(x, names) for x in _items(value))


def _item(value: object, names: Names) -> Item:
    what = value.get("is") if isinstance(value, dict) else ""
    if what == "when":
        f = _fields(value, When)
        return When(_cond(f["cond"], names), _body(f["body"], names), _spot(f["spot"]))
    if what == "loop":
        f = _fields(value, Loop)
        name = _name(f["name"])
        if name in names:
            raise _bad(f"two loops inside each other are called {name}")
        return Loop(
            name, _index(f["lo"], names), _index(f["hi"], names), _enum(Step, f["step"]), _boolean(f["over_lanes"]), _integer(f["at_most"]),
            _body(f["body"], names | {name}), _spot(f["spot"]),
        )
    f = _fields(value, Op)
    return Op(
        _integer(f["id"]), _enum(OpKind, f["kind"]), _name(f["stream"]), tuple(_cell(c, names) for c in _items(f["reads"])),
        tuple(_cell(c, names) for c in _items(f["writes"])), tuple(_raise(r, names) for r in _items(f["raises"])),
        tuple(_promise(w, names) for w in _items(f["waits"])), _words(f["words"], names), _truth(f["seed"], names), _index(f["context"], names),
        _spot(f["spot"]),
    )


def _cell(value: object, names: Names) -> Cell:
    f = _fields(value, Cell)
    return Cell(
        _name(f["buffer"]), tuple(_coord(k, names) for k in _items(f["key"])), _index(f["node"], names), _coord(f["lane"], names), _index(f["call"], names),
        tuple(_index(u, names) for u in _items(f["use"])),
    )


def _raise(value: object, names: Names) -> Raise:
    f = _fields(value, Raise)
    return Raise(_enum(Event, f["event"]), _promise(f["promise"], names))


def _promise(value: object, names: Names) -> Promise:
    f = _fields(value, Promise)
    return Promise(_name(f["flag"]), tuple(_index(k, names) for k in _items(f["key"])), _index(f["node"], names), _index(f["lane"], names), _index(f["call"], names))


# ---- expressions


def _coord(value: object, names: Names) -> Coord:
    return Every(value) if isinstance(value, str) and value in ("all", "others") else _index(value, names)


def _index(value: object, names: Names) -> Index:
    tree = from_json(value)
    if _type(tree, names) is not int:
        raise _bad(f"{value} is a condition, not a number")
    return tree


def _truth(value: object, names: Names) -> Truth:
    return value if isinstance(value, bool) else _cond(value, names)


def _cond(value: object, names: Names) -> Cond:
    tree = from_json(value)
    if not isinstance(tree, Cond):
        raise _bad(f"{value} is not a condition over indices")
    _type(tree, names)
    return tree


def _type(tree: object, names: Names) -> type:
    """int or bool. Refuses symbols out of scope, ints of more than 64 bits, and operators over what they do not take."""
    if not isinstance(tree, Node):
        if abs(tree) > MAX_INT64:
            raise _bad(f"{tree} has more than 64 bits")
        return type(tree)
    if tree.op is Sign.SYM:
        if tree.args[0] not in names:
            raise _bad(f"there is no index {tree.args[0]} here")
        return int
    types = [_type(x, names) for x in tree.args]
    match tree.op:
        case Sign.AND | Sign.OR | Sign.NOT:
            fits = bool(types) and all(t is bool for t in types)
        case Sign.ITE:
            fits = types == [bool, int, int]
        case Sign.MUL:
            fits = types == [int, int] and type(tree.args[0]) is int
        case Sign.DIV | Sign.MOD:
            fits = types == [int, int] and type(tree.args[1]) is int and tree.args[1] >= 1
        case _:
            fits = all(t is int for t in types)
    if not fits:
        raise _bad(f"{tree.op.value} is applied to what it does not take")
    return bool if isinstance(tree, Cond) else int


# ---- values


def _fields(value: object, cls: type) -> dict[str, object]:
    """The fields of a dataclass as `jsonable` spells them: all of them and no other."""
    if not isinstance(value, dict) or set(value) != {"is", *cls.__dataclass_fields__} or value["is"] != cls.__name__.lower():
        raise _bad(f"a {cls.__name__.lower()} has not the fields that it should have")
    return value


def _all(read: Callable[[object], T], value: object) -> tuple[T, ...]:
    return tuple(read(x) for x in _items(value))


def _items(value: object, count: int = -1) -> list:
    if not isinstance(value, list) or count >= 0 and len(value) != count:
        raise _bad("a list is missing, or has another length")
    return value


def _words(value: object, names: Names) -> tuple[tuple[str, Index], ...]:
    return tuple((_string(word), _index(x, names)) for word, x in (_items(pair, 2) for pair in _items(value)))


def _knob(value: object) -> int | str:
    if not isinstance(value, (int, str)):
        raise _bad("a knob is neither a number nor a word")
    return value


def _integer(value: object, low: int = 0, high: int = MAX_INT64) -> int:
    if type(value) is not int or not low <= value <= high:
        raise _bad(f"a number is missing, or is outside {low}..{high}")
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise _bad("a truth value is missing")
    return value


def _string(value: object) -> str:
    if not isinstance(value, str):
        raise _bad("a text is missing")
    return value


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value) or keyword.iskeyword(value) or value in _RESERVED:
        raise _bad(f"{json.dumps(value)[:60]} is not a name")
    return value


def _enum(kind: type[E], value: object) -> E:
    for member in kind:
        if type(value) is str and member.value == value:
            return member
    raise _bad(f"{json.dumps(value)[:60]} is no {kind.__name__.lower()}")


def _spot(value: object) -> Spot:
    first, *via = (_line(x) for x in _items(value) or [""])
    return replace(first, via=tuple(via))


def _line(value: object) -> Spot:
    found = _SPOT.fullmatch(_string(value))
    return Spot(found[1], int(found[2])) if found else Spot(value, 0)


def _bad(reason: str) -> TidecError:
    return TidecError(Diagnostic("P002", "this is not a stored plan", reason=reason, help="plan it again; a stored plan is never edited"))
