"""Whether what a schedule says of its inputs and outputs is what the collective is asked for: nothing else compares its words with the contract.

M nodes, L lanes, n node, j lane. Of an input or output, the block with indices # on rank (n, j):

    shard       the shard of (n, j)
    placed      (.., m, i): the shard of rank (m, i), for every node m and lane i
    grad_slice  (p, t, b, ..): sub-slice b of part p of the rows of node t, as rank (n, j) has it, for every t and b
    grad_row    (p, i, ..): part p of the row of lane i, as rank (n, j) has it, for every i; out_row (p, ..): the own row, of the own node's lanes
    out_slice   (p, b, ..): sub-slice b of part p of the rows of node n, of all nodes' lanes, for every b

with the chunks of a block as its last indices. A sum over nodes is complete because a cover asks for every node's contribution to each block.
"""
from __future__ import annotations

from collections.abc import Iterator

from tidec.index import Index, symbol
from tidec.schedule.program import ALL, Block, Buffer, Cover, Every, Kind, OpKind, Step
from tidec.verify.families import World
from tidec.verify.judge import Judge
from tidec.verify.obligation import Obligation
from tidec.verify.terms import Bool, Term, Values

_GATHERED = (Block.SHARD, Block.PLACED)


def check_contract(w: World, judge: Judge) -> None:
    """V301: inputs and outputs hold what the collective's contract says, all of it; every branch has an output; a sum over nodes asks for every node."""
    outputs = [b for b in w.program.buffers if b.kind is Kind.OUTPUT]
    _state(judge, "outputs: the branch writes one", bool(outputs))
    for buffer in w.program.buffers:
        if buffer.kind is not Kind.TEMP:
            for what, goal in _of(w, buffer):
                _state(judge, f"{buffer.name}: {what}", goal)
    landed = {c.buffer for s in w.statements if s.op.kind is OpKind.LAND for c in s.op.reads}
    for name in sorted(landed):
        covers = [c for c in w.program.covers if c.buffer == name]
        _state(judge, f"{name}: what is landed of several nodes is covered", bool(covers))
        for cover in covers:
            for b in outputs:
                if b.block is Block.OUT_SLICE:
                    _state(judge, f"{name}: its cover asks for every node's contribution to every block", _asks_for_all(w, cover, b))


def _state(judge: Judge, what: str, goal: Bool) -> None:
    judge.claim(Obligation("V301", what, (), goal, ()))


def _of(w: World, b: Buffer) -> Iterator[tuple[str, Bool]]:
    """What is claimed of an input or output. A shard as an output says by itself which one each block is."""
    t, (n, j) = w.terms, (symbol("n"), symbol("j"))
    me = w.rank("r")
    at = Values({**me.at, **{f"#{d.name}": t.var(f"block.{d.name}") for d in b.dims}, **{f"@{p}": t.var(f"use.{p}") for p in b.per}})
    key = [symbol(f"#{d.name}") for d in b.dims]
    wanted: dict[Block, tuple[Index, ...]] = {
        Block.SHARD: (n, j), Block.PLACED: tuple(key[-2:]), Block.GRAD_SLICE: tuple(key), Block.GRAD_ROW: tuple(key),
        Block.OUT_SLICE: (key[0], n, *key[1:]), Block.OUT_ROW: (key[0], j, *key[1:]),
    }
    if b.block is Block.SHARD and b.kind is Kind.OUTPUT or b.block not in wanted:
        return
    held = wanted[b.block]
    same = len(b.holds) == len(held) and t.every([*w.in_box(b.dims, [at[f"#{d.name}"] for d in b.dims]), *w.in_rank(at)])
    yield "holds what the contract says", t.implies(same, t.equal(w.reads(b.holds, at), w.reads(held, at))) if same is not False else False
    whole = {Block.PLACED: {-2: w.nodes, -1: w.lanes}, Block.GRAD_SLICE: {1: w.nodes, 2: w.lanes}, Block.GRAD_ROW: {1: w.lanes}, Block.OUT_SLICE: {1: w.lanes}}
    for d, size in whole.get(b.block, {}).items():
        dim = b.dims[d]
        yield f"has every {dim.name}", t.every((dim.step is Step.BY_ONE, t.eq(w.read(dim.lo, at), 0), t.eq(w.read(dim.hi, at), size)))
    if b.block not in _GATHERED:
        parts = int(dict(w.program.knobs).get("n_part", 1))
        yield "has every part", t.every((t.eq(w.read(b.dims[0].lo, at), 0), t.eq(w.read(b.dims[0].hi, at), parts)))
    if b.block in (Block.GRAD_SLICE, Block.GRAD_ROW):
        yield "is the own rank's", _is_own(w, b, at, is_lane_own=True)
    if b.block is Block.OUT_ROW:
        # Only lanes of one node are in it, so it is the sum of all only where there is one.
        yield "is the own node's, and there is no other", t.every((_is_own(w, b, at, is_lane_own=False), t.eq(w.nodes, 1)))


def _is_own(w: World, b: Buffer, at: Values, *, is_lane_own: bool) -> Bool:
    """Whose contributions are in it: the own node's, and the own lane's or those of all lanes."""
    if len(b.source) != 2 or isinstance(b.source[0], Every):
        return False
    node, lane = b.source
    lanes = w.terms.eq(w.read(lane, at), at["j"]) if not isinstance(lane, Every) else False
    return w.terms.every((w.terms.eq(w.read(node, at), at["n"]), lanes if is_lane_own else lane is ALL))


def _asks_for_all(w: World, cover: Cover, out: Buffer) -> Bool:
    """Ask, writer and block: one index of the ask is the writer's node and one the owner's, of every node each; the others are those of the output."""
    t = w.terms
    ask = {d.name: t.var(f"ask.{d.name}") for d in cover.ask}
    sizes = {ask[d.name]: (w.read(d.lo, Values({"M": w.nodes})), w.read(d.hi, Values({"M": w.nodes}))) for d in cover.ask}
    at = Values({"M": w.nodes, **{f"#{name}": x for name, x in ask.items()}})
    found = {name: w.read(x, at) for name, x in cover.found}
    buffer = w.buffers[cover.buffer]
    if set(buffer.per) - set(found) or any(isinstance(k, Every) for k in cover.key) or any(d.step is not Step.BY_ONE for d in cover.ask):
        return False
    owner = Values({
        "M": w.nodes, "n": w.read(cover.node, at), "j": w.read(cover.lane, at), "e": t.var("e"),
        **{f"#{d.name}": w.read(k, at) for d, k in zip(buffer.dims, cover.key, strict=True)}, **{f"@{name}": found[name] for name in buffer.per},
    })
    label = w.reads(buffer.holds, owner)
    every_node = (0, w.nodes)
    dims = [(w.read(d.lo, Values({"M": w.nodes})), w.read(d.hi, Values({"M": w.nodes}))) for d in out.dims]
    wanted = [every_node, dims[0], every_node, *dims[1:]]
    named = [found.get("n"), *label]
    if len(named) != len(wanted) or len(set(map(id, named))) != len(named) or not all(isinstance(x, Term) and x in sizes for x in named):
        return False
    return t.every(t.equal(sizes[x], size) for x, size in zip(named, wanted))
