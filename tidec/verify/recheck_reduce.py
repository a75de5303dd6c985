"""The op table of a reduce-scatter against the closed forms of the paper: eqs. 6-8, waves, generations, stale blocks, outbox order.

M nodes, L lanes, n node, j lane, e call, p part, c contributor (c = M is the own node, which counts as 0 in the rotation), t = n + c mod M the node that
it is sent to, w = (c-1) // W its wave, r = (c-1) mod W // k its round of the wave, J = p*(M-1) + c-1 its place in the order of sending, G a node-local
sum in order, U a chunk of one, x stripe. On lane j contributor c brings sub-slice (j + c) mod L, so the diagonal d = sub-slice - lane mod L is c mod L
on every lane, and L-bit masks of diagonals say which blocks a wave writes.
Source: paper sections 4.2 to 4.4, Algorithm 1; facts/proofs.md sections 2 and 3.
"""
from __future__ import annotations

from dataclasses import dataclass

from tidec.verify.recheck_layout import Facts
from tidec.verify.recheck_table import Ops, accesses, compare, transfer
from tidec.verify.recheck_words import refuted

_PUT, _SUM, _PUSH = ("put", "partial", "partial"), ("sum", "slice", "grad_slice", "partial"), ("copy", "grad_slice", "slice")
_OWN, _LAND, _ZERO, _FREE = ("copy", "partial", "partial"), ("land", "partial", "out_slice"), ("zero", "partial"), ("free", "grad_slice")
_ROW_SUM, _ROW_PUSH, _ROW_FREE = ("sum", "row", "grad_row", "out_row"), ("copy", "grad_row", "row"), ("free", "grad_row")


@dataclass(frozen=True, slots=True)
class Forms:
    """The closed forms of one plan, seen from rank (n, j) in call e; built by `forms`.

    waves: of a part.  remote D: remote blocks of a call.  blocks: of an outbox bank.
    pieces: (stripe, chunk of it) of every chunk of a block, one empty one where blocks are whole.  whole: the end of the key of a whole block.
    sends: (p, c, J) in the order of sending.
    chunks: (U, p, c, J, t, r, piece) of every chunk of every node-local sum in order: lane o's share is for sub-slice (o + r) mod L of node t. What the
    outbox has room for comes first, then the own node (c = M, J = -1, r = 0), then the rest.
    """

    facts: Facts
    here: tuple[int, int, int]
    width: int
    waves: int
    remote: int
    blocks: int
    pieces: tuple[tuple[int, ...], ...]
    whole: tuple[str, ...]
    sends: list[tuple[int, int, int]]
    chunks: list[tuple[int, int, int, int, int, int, tuple[int, ...]]]

    def generation(self, w: int) -> int:
        """Which of the two copies of the inbox a wave uses; a lone wave always uses the first."""
        return 0 if self.waves == 1 else w % 2


def forms(facts: Facts, point: tuple[int, int, int]) -> Forms:
    """The closed forms of a plan."""
    M, L, parts, n, width, n_out = facts.nodes, facts.lanes, facts.parts, point[0], facts.knobs["W"], facts.knobs["n_out"]
    remote = parts * (M - 1)
    blocks = remote if n_out == "full" else n_out
    pieces = tuple((x, y) for x in range(facts.stripes) for y in range(facts.chunks // facts.stripes)) if facts.chunks > 1 else ((),)
    sends = [(p, c, p * (M - 1) + c - 1) for p in range(parts) for c in range(1, M)]
    ahead, count = min(blocks, remote), len(pieces)
    own = [(p, M, -1) for p in range(parts)]
    sums = enumerate([*sends[:ahead], *own, *sends[ahead:]])
    chunks = [(G * count + i, p, c, J, (n + c) % M, c % M % L, piece) for G, (p, c, J) in sums for i, piece in enumerate(pieces)]
    return Forms(facts, point, width, -(-M // width), remote, blocks, pieces, ("all",) * len(pieces[0]), sends, chunks)


def check_reduce_scatter(facts: Facts, point: tuple[int, int, int], lanes: tuple[int, ...]) -> None:
    """Every op that moves, sums or names memory, as rank (n, j) issues it in call e.

    lanes: the lanes whose copies are compared; empty = all.  Raises V104, V105, V106, V107 or V204 with the op that is not as it should be.
    """
    ops, f, (n, j, e) = Ops(facts, point, lanes), forms(facts, point), point
    lanes = tuple(o for o in lanes or range(facts.lanes) if o != j)
    if facts.nodes == 1:
        _check_alone(ops, f, lanes)
        return
    ops.check_kinds(_PUT, _SUM, _PUSH, _OWN, _LAND, _ZERO, _FREE)
    outbox, inbox = _only(facts, ops, *_PUT)
    spare, _ = _only(facts, ops, *_OWN)
    if len({outbox, inbox, spare}) < 3 or ops.buffers(*_OWN) != {(spare, inbox)} or {b for b, _ in ops.buffers(*_LAND)} != {inbox}:
        raise refuted("V105", facts.file, "outbox, spare and inbox are not three buffers, each with its own use")
    puts = ops.rows(*_PUT, ask=lambda op: [*transfer(op), "r"])
    compare(facts, "V105", "put", puts, _puts(f, outbox, inbox))
    if ops.buffers(*_ZERO) not in (set(), {(inbox,)}):
        raise refuted("V107", facts.file, "another buffer than the inbox is zeroed")
    _check_masks(ops, f)
    _check_sums(ops, f, outbox, spare)
    _check_pushes(ops, f, lanes)
    out = next(b["name"] for b in facts.program["buffers"] if b["kind"] == "output")
    own = [(spare, inbox, e % 2, p, *f.whole, *point, f.generation(f.waves - 1), j, *f.whole, *point) for p in range(facts.parts)]
    compare(facts, "V106", "copy of the own node's sum", ops.rows(*_OWN), own)
    lands = [
        (inbox, out, f.generation(w), "all", *f.whole, n, "all", e, p, "all", *f.whole, *point, w == 0) for p in range(facts.parts) for w in range(f.waves)
    ]
    compare(facts, "V106", "landing", ops.rows(*_LAND, ask=lambda op: [*accesses(op), op["seed"]]), lands)
    grad = next(b["name"] for b in facts.program["buffers"] if b["kind"] == "input")
    compare(facts, "V105", "free", ops.rows(*_FREE), [(grad, "all", "all", "all", *f.whole, *point)])
    _check_outbox(ops, f)


def _only(facts: Facts, ops: Ops, *what: str) -> tuple[str, ...]:
    found = ops.buffers(*what)
    if len(found) != 1:
        raise refuted("V105", facts.file, f"a {what[0]} between {' and '.join(what[1:])} blocks is missing, or uses several buffers")
    return next(iter(found))


def _puts(f: Forms, outbox: str, inbox: str) -> list[tuple]:
    n, j, e = f.here
    M, L, stripes, bank = f.facts.nodes, f.facts.lanes, f.facts.stripes, e % 2
    width, k = f.width, f.facts.knobs["k"]
    cuts = [(f.whole, ())] if stripes == 1 else [((x, "all"), (x,)) for x in range(stripes)]
    result = []
    for p, c, J in f.sends:
        w, t, r = (c - 1) // width, (n + c) % M, (c - 1) % width // k
        generation, block, slot = f.generation(w), (j + c) % L, J % f.blocks
        for x, (at, stripe) in enumerate(cuts):
            result.append((
                outbox, inbox, bank, slot, *at, n, j, e, J, generation, block, *at, t, j, e, p, w, x, True, c, *stripe, p, t, j, e, False, J, *stripe, n, j, e, r))
    return result


def _check_masks(ops: Ops, f: Forms) -> None:
    """No two writers of a wave share a diagonal; a block that a wave does not write is zeroed if the last use of its generation wrote it.

    That is tracked over two calls: what a generation holds of an earlier use is dirty until it is written or zeroed.
    """
    facts, lanes = f.facts, f.facts.lanes
    wrote: dict[tuple[int, int], int] = {(p, w): 0 for p in range(facts.parts) for w in range(f.waves)}
    writers = [(p, (c - 1) // f.width, c % lanes, c) for p, c, _ in f.sends] + [(p, f.waves - 1, 0, facts.nodes) for p in range(facts.parts)]
    for p, w, d, c in writers:
        if wrote[p, w] >> d & 1:
            raise refuted("V104", facts.file, f"contributor {c} of wave {w} shares its block with another one of the wave")
        wrote[p, w] |= 1 << d
    zeroed = dict.fromkeys(wrote, 0)
    for _, generation, block, *rest in ops.rows(*_ZERO, ask=lambda op: [*accesses(op), *op["writes"][0]["use"]]):
        *place, p, w = rest
        bit = 1 << (block - f.here[1]) % lanes
        if (p, w) not in zeroed or place != [*f.whole, *f.here] or generation != f.generation(w) or not 0 <= block < lanes or zeroed[p, w] & bit:
            raise refuted("V107", facts.file, f"wave {w} zeroes block {block} of generation {generation}, which is not its own, or twice")
        zeroed[p, w] |= bit
    dirty = [0, 0]
    for call in range(2):
        for (p, w), fresh in wrote.items():
            stale = dirty[f.generation(w)] & ~fresh
            if call and zeroed[p, w] != stale:
                raise refuted("V107", facts.file, f"wave {w} of part {p} zeroes other blocks than those that an earlier wave left",
                              reason=f"diagonals {zeroed[p, w]:0{lanes}b}, want {stale:0{lanes}b}")
            dirty[f.generation(w)] = fresh


def _check_sums(ops: Ops, f: Forms, outbox: str, spare: str) -> None:
    (n, j, e), L, slots, names = f.here, f.facts.lanes, f.facts.knobs["n_stg"], next(iter(ops.buffers(*_SUM)))[:2]
    wanted = [
        (*names, outbox if J >= 0 else spare, U % slots, "others", n, j, e, p, t, (j + r) % L, *at, n, j, e, e % 2, J % f.blocks if J >= 0 else p, *at, n, j, e, False, U)
        for U, p, c, J, t, r, at in f.chunks]
    found = ops.rows(*_SUM, ask=lambda op: [*accesses(op), op["seed"], *op["reads"][0]["use"]])
    compare(f.facts, "V105", "sum", found if found == wanted else sorted(found, key=_last), wanted)


def _check_pushes(ops: Ops, f: Forms, lanes: tuple[int, ...]) -> None:
    (n, j, e), L, slots, names = f.here, f.facts.lanes, f.facts.knobs["n_stg"], next(iter(ops.buffers(*_PUSH)), ("", ""))
    wanted = [(*names, p, t, (o + r) % L, *at, n, j, e, U % slots, j, n, o, e, U) for U, p, c, J, t, r, at in f.chunks for o in lanes]
    found = ops.rows(*_PUSH, ask=lambda op: [*accesses(op), *op["writes"][0]["use"]], all_lanes=False)
    compare(f.facts, "V105", "copy to another lane", found if found == wanted else sorted(found, key=_last), wanted)


def _last(row: tuple) -> tuple:
    return row[-1], row[-3]


def _check_outbox(ops: Ops, f: Forms) -> None:
    """A sum is issued before the put of its block, and behind the put that its block held before, or ranks wait for each other."""
    sums = [g for g in ops.of(*_SUM) if g.op["writes"][0]["use"]]
    puts = ops.of(*_PUT)
    if f.blocks >= f.remote and max(g.places[0] for g in sums) < min(g.places[0] for g in puts):
        return
    sent: dict[int, tuple] = {}
    for g in puts:
        for (J,), place in ops.placed(g, g.op["reads"][0]["use"]):
            sent.setdefault(J, place)
    for g in sums:
        for (J,), place in ops.placed(g, g.op["writes"][0]["use"]):
            if not place < sent[J] or J >= f.blocks and not sent[J - f.blocks] < place:
                raise refuted("V204", f.facts.file, f"outbox block {J % f.blocks} is summed for transfer {J} before it is free, or after it is sent")


def _check_alone(ops: Ops, f: Forms, lanes: tuple[int, ...]) -> None:
    """One node: every lane sums its own row, straight into the output."""
    facts, (n, j, e), slots = f.facts, f.here, f.facts.knobs["n_stg"]
    ops.check_kinds(_ROW_SUM, _ROW_PUSH, _ROW_FREE)
    names = _only(facts, ops, *_ROW_SUM)
    stage, rows, _ = names
    chunks = [(p * len(f.pieces) + i, p, at) for p in range(facts.parts) for i, at in enumerate(f.pieces)]
    sums = [(*names, U % slots, "others", n, j, e, p, j, *at, n, j, e, p, *at, n, j, e, True) for U, p, at in chunks]
    compare(facts, "V105", "sum", ops.rows(*_ROW_SUM, ask=lambda op: [*accesses(op), op["seed"]]), sums)
    pushes = [(rows, stage, p, o, *at, n, j, e, U % slots, j, n, o, e) for U, p, at in chunks for o in lanes]
    compare(facts, "V105", "copy to another lane", ops.rows(*_ROW_PUSH, all_lanes=False), pushes)
    compare(facts, "V105", "free", ops.rows(*_ROW_FREE), [(rows, "all", "all", *f.whole, n, j, e)])
