"""The op table of an all-gather against the closed forms of the paper: Bruck's rounds and intervals, runs, destinations.

M nodes, L lanes, n node, j lane, e call, h slots held when a round starts (1, 2, 4, ...), k slot of a round, q slot. Slot q of rank (n, j) is the shard
of rank (n + q mod M, j); slot 0 is its own. In the round that starts with h held, slots k = 0 .. least(h, M - h) - 1 go to node n - h mod M, which has
them as slots h + k: so a slot is sent only after it came, the intervals [h, h + least(h, M - h)) tile 1 .. M-1, and all M slots are held at the end.
Source: paper section 3; facts/proofs.md section 4.
"""
from __future__ import annotations

from operator import itemgetter

from tidec.verify.recheck_layout import Facts
from tidec.verify.recheck_table import Columns, Ops, compare, compare_rows, repeated, transfer
from tidec.verify.recheck_words import refuted

_PUT, _CAST, _PLACE, _READ, _FREE = ("put", "shard", "shard"), ("cast", "shard", "shard"), ("copy", "shard", "placed"), ("read", "placed"), ("free", "shard")


def check_all_gather(facts: Facts, point: tuple[int, int, int], lanes: tuple[int, ...]) -> None:
    """Every op that moves or names memory, as rank (n, j) issues it in call e.

    lanes: the lanes whose copies are compared; empty = all.  Raises V105 or V106 with the op that is not as it should be.
    """
    ops, (n, j, e) = Ops(facts, point, lanes), point
    M, here = facts.nodes, point
    ops.check_kinds(_PUT, _CAST, _PLACE, _READ, _FREE)
    kinds = {(b["kind"], b["block"]): b["name"] for b in facts.program["buffers"]}
    shard, stage, land = kinds["input", "shard"], kinds.get(("temp", "shard"), ""), kinds["output", "placed"]
    if len(kinds) != len(facts.program["buffers"]) or (M > 1 or facts.has_cast) is not bool(stage):
        raise refuted("V105", facts.file, "an all-gather has one shard, one stage and one landing")

    def home(q: int) -> str:
        """Where slot q lies: the own shard where it is resident, unless it is cast into the stage."""
        return stage if q or facts.has_cast else shard

    rounds = [(h, k) for h in _rounds(M) for k in range(min(h, M - h))]
    h, k, slot, to = [h for h, _ in rounds], [k for _, k in rounds], [h + k for h, k in rounds], [(n - h) % M for h, _ in rounds]
    puts = Columns(len(rounds), [[*map(home, k)], stage, k, *here, slot, to, j, e, 0, True, h, k, to, j, e, False, slot, *here])
    compare_rows(facts, "V105", "put", ops.issued(*_PUT, ask=transfer), puts.rows())
    compare(facts, "V105", "cast", ops.columns(*_CAST), Columns(int(facts.has_cast), [shard, stage, 0, *here, 0, *here]))
    to_lanes = ["all"] if facts.knobs["multicast"] else [*(lanes or range(facts.lanes))]
    slots, times = [*range(M)], len(to_lanes)
    q, source, node = (repeated(column, times) for column in (slots, [*map(home, slots)], [(n + x) % M for x in slots]))
    placed = Columns(len(q), [source, land, q, *here, e % facts.landings, node, j, n, to_lanes * M, e])
    compare_rows(facts, "V106", "copy into the landing", sorted(ops.rows(*_PLACE, all_lanes=False), key=_slot), placed.rows())
    compare(facts, "V105", "read", ops.columns(*_READ), Columns(1, [land, (e - 1) % facts.landings, "all", "all", n, j, e - 1]))
    compare(facts, "V105", "free", ops.columns(*_FREE), Columns(1, [shard, 0, *here]))


def _rounds(nodes: int) -> list[int]:
    """1, 2, 4, ... below M."""
    return [1 << i for i in range((nodes - 1).bit_length())]


_slot = itemgetter(2, -2)
