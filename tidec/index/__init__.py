"""ONE TREE: index expressions, and their readings as ints, text and JSON."""
from tidec.index.evaluate import compiled, evaluate
from tidec.index.expr import (
    Cond, Expr, Index, Node, Op, Truth, back, ceildiv, every, least, most, no, rebuild, residues, some, substitute, symbol, symbols, times, top2, where, wrap,
)
from tidec.index.text import from_json, text, to_json

__all__ = [
    "Cond", "Expr", "Index", "Node", "Op", "Truth", "back", "ceildiv", "compiled", "evaluate", "every", "from_json", "least", "most", "no", "rebuild", "residues",
    "some", "substitute", "symbol", "symbols", "text", "times", "to_json", "top2", "where", "wrap",
]
