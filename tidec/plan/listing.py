"""The text of a plan's steps, one line a descriptor: what the compiled echo must print, byte for byte.

One op gives one or more lines; a copy, cast, read or free gives one a descriptor or tensor, and so none where it has none. A run of no
trips is no op. `n.j` is a rank, `n.*` all lanes of node n. Numbers are decimal. Lines have no end mark here; the echo ends each with \\n.

    line    = stream " " what
    what    = "wait "   counter " by "  rank " >= " value
            | "signal " counter " for " rank " = "  value
            | "copy "   from " -> " to " " width "x" rows
            | "put "    place " -> " place " " width "x1 then " counter " for " rank " = " value " done " counter " = " value [" over " context]
            | "zero "   place " " width "x1"
            | "cast "   place " -> " place " " elems " " type ">" type
            | "sum "    place " seed=" flag          the block that is written; then, in the order of addition:
            | "sum + "  from " -> " to " " width "x" rows
            | "land "   place " seed=" flag          the output's part; then, one a sub-slice that is not empty:
            | "land " ("+" | "*") " " place " -> " place " " width
            | "join" | "read " place " " width "x1" | "free " place " " width "x1"
    counter = name | name "[" key {"," key} "]"      the keys that choose the counter; of an `each` flag all keys
    place   = space "@" n "." (j | "*") "+" bytes    space: arena, shard, grad<p> (p counts all parameters of the group), out
    from,to = place | place "/" pitch                with the pitch where rows > 1
    context = the RMA context, where it is not 0

`width` is in bytes of the source; in a sum and in a cast the destination's row has as many values of its own type, and its offset and
pitch are bytes of that type. "land +" adds lanes 0..L-1 in order (p2p), "land *" is one reduction in the switch (nvls). flag is 0 or 1.

    entry wait released by 0.1 >= 0
    entry signal room for 0.0 = 1
    rail put shard@0.1+0 -> arena@1.1+3072 96x1 then have[1] for 1.1 = 1 done sent[1] = 1
    scatter copy shard@0.1+0 -> arena@0.0+48 32x1
    scatter copy arena@0.1+3072/96 -> arena@0.0+176/64 32x3
    rail cast shard@0.1+0 -> arena@0.1+2048 48 fp32>bf16
    read copy grad0@0.1+192/64 -> arena@0.0+128/32 32x2
    read sum arena@0.1+512 seed=0
    read sum + arena@0.1+0/32 -> arena@0.1+512/64 32x2
    read sum + grad0@0.1+128/64 -> arena@0.1+512/64 32x2
    net zero arena@0.1+4096 256x1
    net land out@0.1+0 seed=1
    net land + arena@0.*+2624 -> out@0.1+0 64
    net join
    compute read arena@0.1+1024 1024x1
    read free grad0@0.1+0 512x1
"""
from __future__ import annotations

from collections.abc import Iterator

from tidec.inputs.capability import Lowering
from tidec.plan.ir import Plan
from tidec.plan.steps import Level, Move, Place, Space, Step
from tidec.schedule.program import Every, OpKind


def lines(plan: Plan, rank: int, call: int = 0) -> Iterator[str]:
    """The lines of a rank's steps in a call, in position order. rank: node-major, 0 <= r < N. Raises P102."""
    for step in plan.steps(rank, call):
        yield from step_lines(step, plan.lowering)


def step_lines(step: Step, lowering: Lowering) -> tuple[str, ...]:
    """The lines of one step."""
    kind, start = step.op.kind, f"{step.op.stream} {step.op.kind.value}"
    match kind:
        case OpKind.WAIT:
            (x,) = step.levels
            return (f"{start} {_counter(x)} by {_rank(x.raiser)} >= {x.value}",)
        case OpKind.SIGNAL:
            return tuple(f"{start} {_counter(x)} for {_rank(x.owner)} = {x.value}" for x in step.levels)
        case OpKind.COPY:
            return tuple(f"{start} {_move(m)}" for m in step.moves)
        case OpKind.PUT:
            then, done = step.levels
            (m,) = step.moves
            over = f" over {step.context}" if step.context else ""
            return (f"{start} {_move(m)} then {_counter(then)} for {_rank(then.owner)} = {then.value} done {_counter(done)} = {done.value}{over}",)
        case OpKind.CAST:
            return tuple(
                f"{start} {_place(m.src)} -> {_place(m.dst)} {m.width // m.src_type.item_bytes} {m.src_type.value}>{m.dst_type.value}" for m in step.moves
            )
        case OpKind.SUM:
            return (f"{start} {_place(step.extents[0].place)} seed={int(step.seed)}", *(f"{start} + {_move(m)}" for m in step.moves))
        case OpKind.LAND:
            how = "+" if lowering is Lowering.P2P else "*"
            return (
                f"{start} {_place(step.extents[0].place)} seed={int(step.seed)}",
                *(f"{start} {how} {_place(m.src)} -> {_place(m.dst)} {m.width}" for m in step.moves),
            )
        case OpKind.JOIN:
            return (start,)
    assert kind in (OpKind.ZERO, OpKind.READ, OpKind.FREE), kind
    return tuple(f"{start} {_place(x.place)} {x.bytes}x1" for x in step.extents)


def _rank(rank: tuple[int, int]) -> str:
    return f"{rank[0]}.{rank[1]}"


def _place(p: Place) -> str:
    name = f"grad{p.param}" if p.space is Space.GRAD else p.space.value
    return f"{name}@{p.node}.{'*' if isinstance(p.lane, Every) else p.lane}+{p.offset}"


def _move(m: Move) -> str:
    if m.rows == 1:
        return f"{_place(m.src)} -> {_place(m.dst)} {m.width}x1"
    return f"{_place(m.src)}/{m.src_pitch} -> {_place(m.dst)}/{m.dst_pitch} {m.width}x{m.rows}"


def _counter(x: Level) -> str:
    return f"{x.flag}[{','.join(map(str, x.key))}]" if x.key else x.flag
