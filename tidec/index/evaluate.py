"""The tree read as Python ints and bools."""
from __future__ import annotations

from collections.abc import Callable, Mapping

from tidec.index.expr import Node, Op


def evaluate(node: object, env: Mapping[str, int]) -> int | bool:
    """The value of the tree where `env` gives every symbol. Raises KeyError for a symbol that it lacks."""
    if not isinstance(node, Node):
        return node
    op, args = node.op, node.args
    if op is Op.SYM:
        return env[args[0]]
    if op is Op.ITE:
        return evaluate(args[1] if evaluate(args[0], env) else args[2], env)
    if op is Op.AND:
        return all(evaluate(a, env) for a in args)
    if op is Op.OR:
        return any(evaluate(a, env) for a in args)
    if op is Op.NOT:
        return not evaluate(args[0], env)
    if op is Op.TOP2:
        x = evaluate(args[0], env)
        return 1 << (x.bit_length() - 1) if x > 0 else 0
    a, b = evaluate(args[0], env), evaluate(args[1], env)
    if op is Op.WRAP:
        return a - b if a >= b else a
    if op is Op.BACK:
        return a + b if a < 0 else a
    return {
        Op.ADD: int.__add__, Op.SUB: int.__sub__, Op.MUL: int.__mul__, Op.DIV: int.__floordiv__, Op.MOD: int.__mod__,
        Op.LT: int.__lt__, Op.LE: int.__le__, Op.EQ: int.__eq__,
    }[op](a, b)


def compiled(node: object, names: tuple[str, ...]) -> Callable[..., int | bool | tuple]:
    """A function of the named symbols, in that order, that gives what `evaluate` gives; for trees that are read many times.

    node: a tree, or a tuple of trees, for a tuple of values.
    """
    return eval(f"lambda {','.join(names)}: {_python(node)}", {"__builtins__": {}, "top2": _top2})


def _top2(x: int) -> int:
    return 1 << (x.bit_length() - 1) if x > 0 else 0


def _python(node: object) -> str:
    if isinstance(node, tuple):
        return f"({''.join(_python(x) + ',' for x in node)})"
    if not isinstance(node, Node):
        return f"({node})"
    op, args = node.op, node.args
    if op is Op.SYM:
        assert args[0].isidentifier()
        return args[0]
    parts = [_python(a) for a in args]
    if op is Op.ITE:
        return f"({parts[1]} if {parts[0]} else {parts[2]})"
    if op in (Op.AND, Op.OR):
        return "(" + f" {op.value} ".join(parts) + ")"
    if op is Op.NOT:
        return f"(not {parts[0]})"
    if op is Op.TOP2:
        return f"top2({parts[0]})"
    if op is Op.WRAP:
        return f"({parts[0]}-({parts[1]} if {parts[0]}>={parts[1]} else 0))"
    if op is Op.BACK:
        return f"({parts[0]}+({parts[1]} if {parts[0]}<0 else 0))"
    return f"({parts[0]}{op.value}{parts[1]})"
