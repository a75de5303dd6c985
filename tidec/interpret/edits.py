"""How a program is changed in one place: an item at a path of its body, or an expression at a site of an item.

A changed program has its ops numbered anew, in the order of the text.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from tidec.index import Node, Op as IndexOp, rebuild
from tidec.schedule.program import Cell, Every, Item, Loop, Op, OpKind, Program, Promise, When

Path = tuple[int, ...]


class Role(Enum):
    """What an expression of an item says."""

    BLOCK = "block"            # which block of a buffer
    NODE = "node"              # on which node
    LANE = "lane"              # on which lane
    USE = "use"                # which use of the block is meant
    CONTENT = "content"        # of which call the contents are meant
    KEY = "key"                # which element of a flag
    RAISED_FOR = "raised for"  # the rank that a promise is raised for: its node, its lane
    RAISED_BY = "raised by"    # the rank that a wait hears from
    CALL = "call"              # of which call a wait means the promise
    SEED = "seed"
    LOW = "low"
    HIGH = "high"
    GUARD = "guard"


@dataclass(frozen=True, slots=True)
class Site:
    """One expression of an item. words: which one. put: the item with another expression there."""

    role: Role
    words: str
    tree: object
    put: Callable[[object], Item]


@dataclass(frozen=True, slots=True)
class Placed:
    """An item of a program, where it stands, and the loops around it."""

    path: Path
    item: Item
    loops: tuple[Loop, ...]


def placed(program: Program) -> Iterator[Placed]:
    """All items, in the order of the text; a loop comes before what is in it."""

    def walk(items: tuple[Item, ...], path: Path, loops: tuple[Loop, ...]) -> Iterator[Placed]:
        for i, item in enumerate(items):
            yield Placed((*path, i), item, loops)
            if not isinstance(item, Op):
                yield from walk(item.body, (*path, i), (*loops, item) if isinstance(item, Loop) else loops)

    return walk(program.body, (), ())


def body_at(program: Program, path: Path) -> tuple[Item, ...]:
    """The items that stand beside the item at the path, itself among them."""
    items = program.body
    for i in path[:-1]:
        items = items[i].body
    return items


def with_items(program: Program, path: Path, items: tuple[Item, ...], num: int = 1) -> Program:
    """The program with `num` items from the path on replaced; bodies that become empty go."""

    def cut(body: tuple[Item, ...], rest: Path) -> tuple[Item, ...]:
        i = rest[0]
        if len(rest) == 1:
            return (*body[:i], *items, *body[i + num :])
        inner = cut(body[i].body, rest[1:])
        return (*body[:i], *((replace(body[i], body=inner),) if inner else ()), *body[i + 1 :])

    return renumbered(replace(program, body=cut(program.body, path)))


def renumbered(program: Program) -> Program:
    """The program with the ids of its ops in the order of the text."""
    count = iter(range(1 << 30))

    def number(items: tuple[Item, ...]) -> tuple[Item, ...]:
        return tuple(replace(x, id=next(count)) if isinstance(x, Op) else replace(x, body=number(x.body)) for x in items)

    return replace(program, body=number(program.body))


def with_promises(program: Program, change: Callable[[Promise], Promise]) -> Program:
    """The program with every promise of a raise or wait changed."""

    def each(items: tuple[Item, ...]) -> tuple[Item, ...]:
        return tuple(
            replace(x, waits=tuple(map(change, x.waits)), raises=tuple(replace(r, promise=change(r.promise)) for r in x.raises))
            if isinstance(x, Op) else replace(x, body=each(x.body)) for x in items
        )

    return replace(program, body=each(program.body))


# ---- expressions


def sites(item: Item) -> Iterator[Site]:
    """All expressions of an item."""
    if isinstance(item, When):
        yield Site(Role.GUARD, "guard", item.cond, lambda x: replace(item, cond=x))
    elif isinstance(item, Loop):
        yield Site(Role.LOW, f"{item.name} from", item.lo, lambda x: replace(item, lo=x))
        yield Site(Role.HIGH, f"{item.name} to", item.hi, lambda x: replace(item, hi=x))
    else:
        yield from _of_op(item)


def _of_op(op: Op) -> Iterator[Site]:
    for field in ("reads", "writes"):
        for i, cell in enumerate(getattr(op, field)):
            def put_cell(x: Cell, field: str = field, i: int = i) -> Op:
                cells = getattr(op, field)
                return replace(op, **{field: (*cells[:i], x, *cells[i + 1 :])})

            yield from _of_cell(op, cell, field[:-1], put_cell)
    for i, kept in enumerate(op.raises):
        def put_raise(p: Promise, i: int = i) -> Op:
            return replace(op, raises=(*op.raises[:i], replace(op.raises[i], promise=p), *op.raises[i + 1 :]))

        yield from _of_promise(kept.promise, f"raises {kept.promise.flag}", Role.RAISED_FOR, put_raise)
    for i, p in enumerate(op.waits):
        def put_wait(p: Promise, i: int = i) -> Op:
            return replace(op, waits=(*op.waits[:i], p, *op.waits[i + 1 :]))

        yield from _of_promise(p, f"awaits {p.flag}", Role.RAISED_BY, put_wait)
        yield Site(Role.CALL, f"awaits {p.flag} of call", p.call, lambda x, p=p, put=put_wait: put(replace(p, call=x)))
    if op.kind in (OpKind.SUM, OpKind.LAND):
        yield Site(Role.SEED, "seed", op.seed, lambda x: replace(op, seed=x))


def _of_cell(op: Op, cell: Cell, verb: str, put: Callable[[Cell], Op]) -> Iterator[Site]:
    about = f"{verb}s {cell.buffer}"
    for role, field in ((Role.BLOCK, "key"), (Role.USE, "use")):
        for d, x in enumerate(getattr(cell, field)):
            if not isinstance(x, Every):
                yield Site(role, f"{about} {role.value} {d}", x, lambda y, f=field, d=d: put(replace(cell, **{f: _at(getattr(cell, f), d, y)})))
    yield Site(Role.NODE, f"{about} on node", cell.node, lambda x: put(replace(cell, node=x)))
    if not isinstance(cell.lane, Every):
        yield Site(Role.LANE, f"{about} on lane", cell.lane, lambda x: put(replace(cell, lane=x)))
    yield Site(Role.CONTENT, f"{about} of call", cell.call, lambda x: put(replace(cell, call=x)))


def _of_promise(p: Promise, about: str, place: Role, put: Callable[[Promise], Op]) -> Iterator[Site]:
    for d, x in enumerate(p.key):
        yield Site(Role.KEY, f"{about} key {d}", x, lambda y, d=d: put(replace(p, key=_at(p.key, d, y))))
    yield Site(place, f"{about} node", p.node, lambda x: put(replace(p, node=x)))
    yield Site(place, f"{about} lane", p.lane, lambda x: put(replace(p, lane=x)))


def _at(values: tuple, i: int, x: object) -> tuple:
    return (*values[:i], x, *values[i + 1 :])


def rewrites(tree: object, change: Callable[[object], Iterator[object]]) -> Iterator[object]:
    """The trees that differ in one node: everything that `change` gives for a node of the tree, in its place."""
    yield from change(tree)
    if isinstance(tree, Node) and tree.op is not IndexOp.SYM:
        for i, a in enumerate(tree.args):
            for new in rewrites(a, change):
                yield rebuild(tree.op, [*tree.args[:i], new, *tree.args[i + 1 :]])
