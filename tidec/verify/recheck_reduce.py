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
from tidec.verify.recheck_table import Columns, Ops, accesses, compare, repeated, transfer
from tidec.verify.recheck_words import refuted

_PUT, _SUM, _PUSH = ("put", "partial", "partial"), ("sum", "slice", "grad_slice", "partial"), ("copy", "grad_slice", "slice")
_OWN, _LAND, _ZERO, _FREE = ("copy", "partial", "partial"), ("land", "partial", "out_slice"), ("zero", "partial"), ("free", "grad_slice")
_ROW_SUM, _ROW_PUSH, _ROW_FREE = ("sum", "row", "grad_row", "out_row"), ("copy", "grad_row", "row"), ("free", "grad_row")


@dataclass(frozen=True, slots=True)
class Forms:
    """The closed forms of one plan, seen from rank (n, j) in call e; built by `forms`.

    waves: of a part.  remote D: remote blocks of a call.  blocks: of an outbox bank.
    pieces: (stripe, chunk of it) of every chunk of a block, one empty one where blocks are whole.  whole: the end of the key of a whole block.
    sends: p, c, J in the order of sending.
    chunks: U, p, c, J, t, r, and stripe and chunk of it where blocks are cut, of every chunk of every node-local sum in order: lane o's share is for
    sub-slice (o + r) mod L of node t. What the outbox has room for comes first, then the own node (c = M, J = -1, r = 0), then the rest.
    """

    facts: Facts
    here: tuple[int, int, int]
    width: int
    waves: int
    remote: int
    blocks: int
    pieces: tuple[tuple[int, ...], ...]
    whole: tuple[str, ...]
    sends: Columns
    chunks: Columns

    def generation(self, w: int) -> int:
        """Which of the two copies of the inbox a wave uses; a lone wave always uses the first."""
        return 0 if self.waves == 1 else w % 2


def forms(facts: Facts, point: tuple[int, int, int]) -> Forms:
    """The closed forms of a plan."""
    M, L, parts, n, width, n_out = facts.nodes, facts.lanes, facts.parts, point[0], facts.knobs["W"], facts.knobs["n_out"]
    remote = parts * (M - 1)
    blocks = remote if n_out == "full" else n_out
    pieces = tuple((x, y) for x in range(facts.stripes) for y in range(facts.chunks // facts.stripes)) if facts.chunks > 1 else ((),)
    remote_p, remote_c = [p for p in range(parts) for _ in range(1, M)], [*range(1, M)] * parts
    ahead, count = min(blocks, remote), len(pieces)
    own = [remote_p[:ahead] + [*range(parts)] + remote_p[ahead:], remote_c[:ahead] + [M] * parts + remote_c[ahead:], [*range(ahead), *[-1] * parts, *range(ahead, remote)]]
    p, c, J = (repeated(column, count) for column in own)
    at = [list(column) * len(own[0]) for column in zip(*pieces)]
    chunks = [[*range(len(c))], p, c, J, [(n + x) % M for x in c], [x % M % L for x in c], *at]
    sends = Columns(remote, [remote_p, remote_c, [*range(remote)]])
    return Forms(facts, point, width, -(-M // width), remote, blocks, pieces, ("all",) * len(pieces[0]), sends, Columns(len(c), chunks))


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
    compare(facts, "V105", "put", ops.columns(*_PUT, ask=lambda op: [*transfer(op), "r"]), _puts(f, outbox, inbox))
    if ops.buffers(*_ZERO) not in (set(), {(inbox,)}):
        raise refuted("V107", facts.file, "another buffer than the inbox is zeroed")
    _check_masks(ops, f)
    _check_sums(ops, f, outbox, spare)
    _check_pushes(ops, f, lanes)
    out = next(b["name"] for b in facts.program["buffers"] if b["kind"] == "output")
    parts = [*range(facts.parts)]
    own = Columns(facts.parts, [spare, inbox, e % 2, parts, *f.whole, *point, f.generation(f.waves - 1), j, *f.whole, *point])
    compare(facts, "V106", "copy of the own node's sum", ops.columns(*_OWN), own)
    waves = [*range(f.waves)] * facts.parts
    generations, seeds = [f.generation(w) for w in waves], [w == 0 for w in waves]
    lands = Columns(len(waves), [inbox, out, generations, "all", *f.whole, n, "all", e, repeated(parts, f.waves), "all", *f.whole, *point, seeds])
    compare(facts, "V106", "landing", ops.columns(*_LAND, ask=lambda op: [*accesses(op), op["seed"]]), lands)
    grad = next(b["name"] for b in facts.program["buffers"] if b["kind"] == "input")
    compare(facts, "V105", "free", ops.columns(*_FREE), Columns(1, [grad, "all", "all", "all", *f.whole, *point]))
    _check_outbox(ops, f)


def _only(facts: Facts, ops: Ops, *what: str) -> tuple[str, ...]:
    found = ops.buffers(*what)
    if len(found) != 1:
        raise refuted("V105", facts.file, f"a {what[0]} between {' and '.join(what[1:])} blocks is missing, or uses several buffers")
    return next(iter(found))


def _puts(f: Forms, outbox: str, inbox: str) -> Columns:
    n, j, e = f.here
    M, L, stripes, width, k = f.facts.nodes, f.facts.lanes, f.facts.stripes, f.width, f.facts.knobs["k"]
    p, c, J = (repeated(column, stripes) for column in f.sends.values)
    x = [*range(stripes)] * f.remote if stripes > 1 else 0
    stripe, at = ([x], [x, "all"]) if stripes > 1 else ([], f.whole)
    w, t = [(y - 1) // width for y in c], [(n + y) % M for y in c]
    r, block = [(y - 1) % width // k for y in c], [(j + y) % L for y in c]
    generation = 0 if f.waves == 1 else [y % 2 for y in w]
    slot = J if f.blocks >= f.remote else [y % f.blocks for y in J]
    return Columns(len(c), [
        outbox, inbox, e % 2, slot, *at, n, j, e, J, generation, block, *at, t, j, e, p, w, x, True, c, *stripe, p, t, j, e, False, J, *stripe, n, j, e, r])


def _check_masks(ops: Ops, f: Forms) -> None:
    """No two writers of a wave share a diagonal; a block that a wave does not write is zeroed if the last use of its generation wrote it.

    That is tracked over two calls: what a generation holds of an earlier use is dirty until it is written or zeroed.
    """
    facts, lanes, width = f.facts, f.facts.lanes, f.width
    masks = [0] * f.waves
    for c in range(1, facts.nodes + 1):
        w, bit = ((c - 1) // width, 1 << c % lanes) if c < facts.nodes else (f.waves - 1, 1)
        if masks[w] & bit:
            raise refuted("V104", facts.file, f"contributor {c} of wave {w} shares its block with another one of the wave")
        masks[w] |= bit
    wrote = {(p, w): mask for p in range(facts.parts) for w, mask in enumerate(masks)}
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
    U, p, _, J, t, r, *at = f.chunks.values
    into, block = [outbox if x >= 0 else spare for x in J], [x % f.blocks if x >= 0 else y for x, y in zip(J, p)]
    wanted = Columns(len(U), [
        *names, into, [x % slots for x in U], "others", n, j, e, p, t, [(j + x) % L for x in r], *at, n, j, e, e % 2, block, *at, n, j, e, False, U])
    compare(f.facts, "V105", "sum", ops.columns(*_SUM, ask=lambda op: [*accesses(op), op["seed"], *op["reads"][0]["use"]]), wanted, by=_last)


def _check_pushes(ops: Ops, f: Forms, lanes: tuple[int, ...]) -> None:
    (n, j, e), L, slots, names = f.here, f.facts.lanes, f.facts.knobs["n_stg"], next(iter(ops.buffers(*_PUSH)), ("", ""))
    U, p, _, _, t, r, *at = (repeated(column, len(lanes)) for column in f.chunks.values)
    to = [*lanes] * f.chunks.count
    sub_slice = [(o + x) % L for o, x in zip(to, r)]
    wanted = Columns(len(U), [*names, p, t, sub_slice, *at, n, j, e, [x % slots for x in U], j, n, to, e, U])
    compare(f.facts, "V105", "copy to another lane", ops.columns(*_PUSH, ask=lambda op: [*accesses(op), *op["writes"][0]["use"]], all_lanes=False), wanted, by=_last)


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
    p, at = repeated([*range(facts.parts)], len(f.pieces)), [list(column) * facts.parts for column in zip(*f.pieces)]
    slot = [U % slots for U in range(len(p))]
    sums = Columns(len(p), [*names, slot, "others", n, j, e, p, j, *at, n, j, e, p, *at, n, j, e, True])
    compare(facts, "V105", "sum", ops.columns(*_ROW_SUM, ask=lambda op: [*accesses(op), op["seed"]]), sums)
    to = [*lanes] * len(p)
    p, slot, *at = (repeated(column, len(lanes)) for column in (p, slot, *at))
    compare(facts, "V105", "copy to another lane", ops.columns(*_ROW_PUSH, all_lanes=False), Columns(len(p), [rows, stage, p, to, *at, n, j, e, slot, j, n, to, e]))
    compare(facts, "V105", "free", ops.columns(*_ROW_FREE), Columns(1, [rows, "all", "all", *f.whole, n, j, e]))
