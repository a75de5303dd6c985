"""The tree read as text for people, and as JSON (nested lists: operator first, symbols as strings)."""
from __future__ import annotations

from tidec.index.expr import Cond, Expr, Node, Op, symbol

_LEVEL = {Op.OR: 1, Op.AND: 2, Op.NOT: 3, Op.LT: 4, Op.LE: 4, Op.EQ: 4, Op.ADD: 5, Op.SUB: 5, Op.MUL: 6, Op.DIV: 6, Op.MOD: 6}


def text(node: object) -> str:
    """The tree as one line, in the words of a schedule."""
    return _text(node, 0)


def _text(node: object, level: int) -> str:
    if not isinstance(node, Node):
        return str(node)
    op, args = node.op, node.args
    if op is Op.SYM:
        return args[0]
    if op in (Op.ITE, Op.WRAP, Op.BACK, Op.TOP2):
        return f"{op.value}({', '.join(_text(a, 0) for a in args)})"
    mine = _LEVEL[op]
    if op is Op.NOT:
        if isinstance(args[0], Node) and args[0].op is Op.EQ:
            line = f"{_text(args[0].args[0], 5)} != {_text(args[0].args[1], 5)}"
        else:
            line = f"not {_text(args[0], mine)}"
    elif op in (Op.AND, Op.OR):
        line = f" {op.value} ".join(_text(a, mine + 1) for a in args)
    else:
        line = f"{_text(args[0], mine)} {op.value} {_text(args[1], mine + 1)}"
    return f"({line})" if mine < level else line


def to_json(node: object) -> object:
    """The tree as JSON values: an int, a bool, a symbol's name, or [operator, arguments...]."""
    if not isinstance(node, Node):
        return node
    return node.args[0] if node.op is Op.SYM else [node.op.value, *map(to_json, node.args)]


_CONDS = {Op.LT, Op.LE, Op.EQ, Op.AND, Op.OR, Op.NOT}


def from_json(value: object) -> object:
    """The tree that `to_json` spelt. Raises ValueError for anything else."""
    if isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return symbol(value)
    if not isinstance(value, list) or not value:
        raise ValueError(f"not an index expression: {value!r}")
    op = Op(value[0])
    arity = {Op.ITE: 3, Op.NOT: 1, Op.TOP2: 1}.get(op, None if op in (Op.AND, Op.OR) else 2)
    if op is Op.SYM or arity is not None and len(value) != arity + 1:
        raise ValueError(f"not an index expression: {value!r}")
    return (Cond if op in _CONDS else Expr)(op, *map(from_json, value[1:]))
