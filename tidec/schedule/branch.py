"""The two branches of a program: M = 1, and every M >= 2. Conditions on M alone are settled, what cannot run there is left out."""
from __future__ import annotations

import json
from dataclasses import replace

from tidec.index import Index, Truth, substitute, to_json
from tidec.schedule.program import Buffer, Cell, Cover, Dim, Item, Op, Program, Promise, Raise, When, statements

# What the spellings of the branch test are worth for every M >= 2.
_SEVERAL_NODES = {'["==", "M", 1]': False, '["not", ["==", "M", 1]]': True, '["<=", 2, "M"]': True, '["<", 1, "M"]': True}


def specialise(program: Program, single_node: bool) -> Program:
    """The program of one branch: M = 1, or every M >= 2. Conditions on M alone are settled, what can not run there is left out."""
    env: dict[str, object] = {"M": 1} if single_node else {}

    def settle(cond: Truth) -> Truth:
        cond = substitute(cond, env)
        return _SEVERAL_NODES.get(json.dumps(to_json(cond)), cond)

    def cut(items: tuple[Item, ...]) -> tuple[Item, ...]:
        kept: list[Item] = []
        for item in items:
            if isinstance(item, Op):
                kept.append(_op(item, env))
                continue
            if isinstance(item, When):
                cond = settle(item.cond)
                if cond is True:
                    kept += cut(item.body)
                elif cond is not False and (body := cut(item.body)):
                    kept.append(When(cond, body, item.spot))
            elif body := cut(item.body):
                kept.append(replace(item, lo=substitute(item.lo, env), hi=substitute(item.hi, env), body=body))
        return tuple(kept)

    cutdown = replace(program, body=cut(program.body), premises=tuple(p for p in (substitute(p, env) for p in program.premises) if p is not True))
    ops = [s.op for s in statements(cutdown)]
    buffers = {c.buffer for op in ops for c in (*op.reads, *op.writes)}
    flags = {r.promise.flag for op in ops for r in op.raises} | {w.flag for op in ops for w in op.waits}
    return replace(
        cutdown,
        buffers=tuple(_buffer(b, env) for b in program.buffers if b.name in buffers),
        flags=tuple(replace(f, on=_dims(f.on, env), box=_dims(f.box, env)) for f in program.flags if f.name in flags),
        covers=tuple(_cover(c, env) for c in program.covers if c.buffer in buffers),
    )


def _sub(values: tuple, env: dict[str, object]) -> tuple:
    return tuple(substitute(v, env) for v in values)


def _dims(dims: tuple[Dim, ...], env: dict[str, object]) -> tuple[Dim, ...]:
    return tuple(replace(d, lo=substitute(d.lo, env), hi=substitute(d.hi, env)) for d in dims)


def _pairs(pairs: tuple[tuple[str, Index], ...], env: dict[str, object]) -> tuple[tuple[str, Index], ...]:
    return tuple((name, substitute(x, env)) for name, x in pairs)


def _cell(c: Cell, env: dict[str, object]) -> Cell:
    return replace(c, key=_sub(c.key, env), node=substitute(c.node, env), lane=substitute(c.lane, env), call=substitute(c.call, env), use=_sub(c.use, env))


def _promise(p: Promise, env: dict[str, object]) -> Promise:
    return replace(p, key=_sub(p.key, env), node=substitute(p.node, env), lane=substitute(p.lane, env), call=substitute(p.call, env))


def _op(op: Op, env: dict[str, object]) -> Op:
    if not env:
        return op
    return replace(
        op, reads=tuple(_cell(c, env) for c in op.reads), writes=tuple(_cell(c, env) for c in op.writes), words=_pairs(op.words, env),
        raises=tuple(Raise(r.event, _promise(r.promise, env)) for r in op.raises), waits=tuple(_promise(w, env) for w in op.waits),
        seed=substitute(op.seed, env), context=substitute(op.context, env),
    )


def _buffer(b: Buffer, env: dict[str, object]) -> Buffer:
    return replace(b, dims=_dims(b.dims, env), holds=_sub(b.holds, env), source=_sub(b.source, env), before=_sub(b.before, env), found=_pairs(b.found, env))


def _cover(c: Cover, env: dict[str, object]) -> Cover:
    return replace(c, ask=_dims(c.ask, env), found=_pairs(c.found, env), node=substitute(c.node, env), lane=substitute(c.lane, env), key=_sub(c.key, env))


def branch(program: Program, nodes: int) -> Program:
    """The branch of the program that a topology with that many nodes runs; M stays a symbol for M >= 2."""
    return specialise(program, single_node=nodes == 1)
