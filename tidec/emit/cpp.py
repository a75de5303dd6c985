"""The tree read as C++: int64_t arithmetic with the helpers of runtime/include/tidec/index.hpp."""
from __future__ import annotations

from collections.abc import Mapping

from tidec.emit.ranges import Range, is_least, is_most
from tidec.emit.simplify import Simplifier
from tidec.index import Node, Op

# How tightly an operator of C++ binds its arguments.
LOWEST, TERNARY, OR, AND, EQUAL, ORDER, SUM, PRODUCT, UNARY = range(9)

_INFIX = {
    Op.OR: ("||", OR), Op.AND: ("&&", AND), Op.EQ: ("==", EQUAL), Op.LT: ("<", ORDER), Op.LE: ("<=", ORDER),
    Op.ADD: ("+", SUM), Op.SUB: ("-", SUM), Op.MUL: ("*", PRODUCT), Op.DIV: ("/", PRODUCT), Op.MOD: ("%", PRODUCT),
}
_MIRRORED = {"<": ">", "<=": ">=", "==": "=="}
_INT64 = range(-(2**63), 2**63)


class Speller:
    """Spells simplified expressions.

    named: the id of an expression that has a name in the program to that name; a symbol that is not in it keeps its own.
    """

    def __init__(self, simple: Simplifier, named: Mapping[int, str]):
        self._simple = simple
        self._named = named

    def text(self, node: object, level: int = LOWEST, *, is_whole: bool = False) -> str:
        """One C++ expression, in parentheses where it binds less tightly than `level`.

        is_whole: spell the expression itself, even if it has a name (to define that name).
        """
        if isinstance(node, bool):
            return "true" if node else "false"
        if isinstance(node, int):
            assert node in _INT64, node
            return str(node) if node >= 0 or level <= SUM else f"({node})"
        assert isinstance(node, Node), node
        if not is_whole and id(node) in self._named:
            return self._named[id(node)]
        line, mine = self._spelt(node)
        return f"({line})" if mine < level else line

    def _spelt(self, node: Node) -> tuple[str, int]:
        op, args = node.op, node.args
        if op is Op.SYM:
            return args[0], UNARY
        if op is Op.ITE:
            if is_least(node):
                return self._call("least", args[1], args[2]), UNARY
            if is_most(node):
                return self._call("most", args[2], args[1]), UNARY
            return f"{self.text(args[0], OR)} ? {self.text(args[1], OR)} : {self.text(args[2], TERNARY)}", TERNARY
        if op in (Op.WRAP, Op.BACK, Op.TOP2):
            return self._call(op.value, *args), UNARY
        if op is Op.NOT:
            (of,) = args
            if isinstance(of, Node) and of.op is Op.EQ and id(of) not in self._named:
                return self._compared("!=", EQUAL, *of.args), EQUAL
            return f"!{self.text(of, UNARY)}", UNARY
        if op in (Op.DIV, Op.MOD) and not self._rounds_alike(args[0]):
            return self._call("floor_div" if op is Op.DIV else "floor_mod", *args), UNARY
        sign, mine = _INFIX[op]
        if op in (Op.LT, Op.LE, Op.EQ):
            return self._compared(sign, mine, *args), mine
        if op in (Op.AND, Op.OR):
            # NOTE: g++ warns about && inside || without parentheses.
            return f" {sign} ".join(self.text(a, EQUAL) for a in args), mine
        return f"{self.text(args[0], mine)} {sign} {self.text(args[1], mine + 1)}", mine

    def _compared(self, sign: str, level: int, a: object, b: object) -> str:
        """The side that varies stands left."""
        if self._is_fixed(a) and not self._is_fixed(b):
            a, b, sign = b, a, _MIRRORED.get(sign, sign)
        return f"{self.text(a, level + 1)} {sign} {self.text(b, level + 1)}"

    def _is_fixed(self, node: object) -> bool:
        lo, hi = self._simple.bounds(node)
        return lo == hi

    def _rounds_alike(self, node: object) -> bool:
        bounds: Range = self._simple.bounds(node)
        return bounds[0] >= 0

    def _call(self, function: str, *args: object) -> str:
        return f"{function}({', '.join(self.text(a) for a in args)})"
