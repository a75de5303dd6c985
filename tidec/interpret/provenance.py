"""Where the contents of a block come from: the value of a cell is the sequence of contributions that were summed into it, in order.

M nodes, L lanes, n node, j lane, e call. A block of fp32 sums holds one token a contribution; zero is the empty sequence. So a contribution that is
missing, there twice, of another call or of another block shows by name, and so does a sum whose order is not fixed.
"""
from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tidec.index import Index, evaluate
from tidec.schedule.program import Block, Dim


class Token(NamedTuple):
    """One contribution: the rank it started from, which block of that rank's input it is, and the call."""

    node: int
    lane: int
    block: tuple[int | str, ...]
    call: int

    def __str__(self) -> str:
        if self.node < 0:
            return str(self.block[0])
        block = f"[{', '.join(map(str, self.block))}]" if self.block else ""
        return f"rank {self.node}.{self.lane}{block} of call {self.call}"


Value = tuple[Token, ...]

ZERO: Value = ()
UNWRITTEN: Value = (Token(-1, -1, ("memory that nobody wrote",), -1),)
FREED: Value = (Token(-1, -1, ("memory that was freed",), -1),)
TORN: Value = (Token(-1, -1, ("a block that was read while it was written",), -1),)


def seed(call: int) -> Value:
    """What the caller accumulates into, in that call."""
    return (Token(-1, -1, (f"the caller's sum of call {call}",), call),)


def handed_in(block: Block, node: int, lane: int, key: tuple[int, ...], call: int) -> Value:
    """What block `key` of the input of rank (node, lane) holds in a call."""
    return (Token(node, lane, () if block is Block.SHARD else key, call),)


def contract_key(block: Block, key: tuple[int, ...]) -> tuple[int, ...]:
    """The part of an output block's key that the contract speaks of: a landing's bank, which comes first, is not."""
    return key[1:] if block in (Block.PLACED, Block.SHARD) else key


def named(holds: tuple[Index, ...], dims: tuple[Dim, ...], node: int, lane: int, key: tuple[int, ...], call: int, *, nodes: int) -> Value:
    """What the buffer's own words say that block `key` holds on rank (node, lane) in a call: the shard of one rank.

    For outputs of packed shards, whose order is the schedule's to choose.
    """
    at = {"M": nodes, "n": node, "j": lane, "e": call, **{f"#{d.name}": k for d, k in zip(dims, key, strict=True)}}
    return handed_in(Block.SHARD, *(evaluate(x, at) for x in holds), (), call)


def expected(block: Block, node: int, lane: int, key: tuple[int, ...], call: int, *, nodes: int, lanes: int) -> Value:
    """The contract: what block `key` of the output of rank (node, lane) holds once a call is through.

    An all-gather's landing (.., m, i) is the shard of rank m.i. A reduce-scatter's output is, added to what the caller had, one contribution of each rank.
    """
    if block is Block.PLACED:
        return (Token(key[-2], key[-1], (), call),)
    assert block in (Block.OUT_SLICE, Block.OUT_ROW), block
    theirs = (key[0], node if block is Block.OUT_SLICE else lane, *key[1:])
    return (*seed(call), *(Token(m, i, theirs, call) for m in range(nodes) for i in range(lanes)))


def difference(value: Value, wanted: Value) -> str:
    """What is wrong with a value, in words; empty if it has the wanted contributions in whatever order."""
    has, wants = Counter(value), Counter(wanted)
    if has == wants:
        return ""
    more, less = list((has - wants).items()), list((wants - has).items())
    found = [f"holds {token} {f'{count} times too often' if token in wants else 'which does not belong there'}" for token, count in more]
    return "; ".join([*found[:3], *(f"lacks {token}" for token, _ in less[:3])])
