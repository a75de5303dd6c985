"""What memory a plan takes, in closed form: its staging exactly, the paper's bounds on it, and the live bytes of a layer's backward.

M nodes, L lanes, N = M*L ranks, S bytes a shard, E elements of a rank's packed output, W wave width, k transfers a round, b bytes of a gradient's value.
E_sub: elements of a sub-slice, ceil(E / (n_part*L)) rounded up to whole chunks of a multiple of 8 elements. A block is L*E_sub fp32 values; with
one pass it is S_fp32, the fp32 output shard, rounded up.

A solver can ask these without a plan; `plan/arena.py` lays the same bytes out, and never more than the bound.
"""
from __future__ import annotations

from fractions import Fraction

from tidec.inputs.ask import Mode
from tidec.inputs.knobs import CHUNK_ALIGNMENT_ELEMS, Full, Knobs, num_chunks

FP32_BYTES = 4


def wave_rounds(nodes: int, width: int, k: int) -> tuple[tuple[int, ...], ...]:
    """Transfers of the network rounds of one pass, a tuple a wave; of more than two whole waves in a row, two.

    nodes: M >= 1.  width: W >= 1.  k >= 1.
    Remote contributors 1..M-1 are taken W a wave (the own node, M, is the last of the last wave) and inside a wave k a round.
    Guaranteed: any two rounds that follow each other in the pass do so in the result.  Source: paper sections 4.2 and 5.2.
    """
    assert nodes >= 1 and width >= 1 and k >= 1, (nodes, width, k)
    full, rest = divmod(nodes - 1, width)
    wave = _rounds(width, k)
    return (*(wave,) * min(full, 2), *((_rounds(rest, k),) if rest else ()))


def outbox_depth(nodes: int, width: int, k: int, num_parts: int) -> int:
    """Outbox blocks a bank that cover two consecutive rounds: the most transfers that two neighbouring rounds of a call have together.

    nodes: M >= 1.  width: W.  k: transfers a round, at most.  num_parts: passes a call, whose rounds follow each other.
    Returns blocks, at most 2*min(k, W) and at most num_parts*(M-1); 0 on one node, which has no outbox.
    Source: paper eq. 9, over the wave-aligned rounds that a plan runs.
    """
    assert num_parts >= 1, num_parts
    rounds = [r for wave in wave_rounds(nodes, width, k) for r in wave] * min(num_parts, 2)
    return max((a + b for a, b in zip([0, *rounds], rounds)), default=0)


def inbox_generations(nodes: int, width: int) -> int:
    """n_par: inbox buffer generations, one where a pass is one wave and two otherwise. Source: paper sections 4.2 and 5.4."""
    return min(2, -(-nodes // width))


def chunk_elems(packed_elems: int, *, lanes: int, knobs: Knobs, grad_item_bytes: int) -> tuple[int, int]:
    """(chunks of a sub-slice, elements of one), as plans cut them. Raises P006 where there would be too many chunks."""
    capacity = _whole_rows(-(-packed_elems // (knobs.n_part * lanes)))
    count = num_chunks(knobs, row_elems=capacity, row_item_bytes=lanes * grad_item_bytes) if knobs.chunk_bytes else num_chunks(knobs)
    return count, _whole_rows(-(-capacity // count))


def reduce_block_bytes(packed_elems: int, *, lanes: int, knobs: Knobs, grad_item_bytes: int) -> int:
    """Bytes of an fp32 block of a reduce-scatter: L sub-slices with all of their chunks. Raises P006."""
    count, elems = chunk_elems(packed_elems, lanes=lanes, knobs=knobs, grad_item_bytes=grad_item_bytes)
    return FP32_BYTES * lanes * count * elems


def reduce_staging_bytes(packed_elems: int, *, nodes: int, lanes: int, knobs: Knobs, grad_item_bytes: int) -> int:
    """Bytes of a reduce-scatter's temporary buffers, exactly: `lower(...).arena.staging_bytes`.

    packed_elems: E, at least 1.  grad_item_bytes: b.  knobs: an n_out below D = n_part*(M-1) is a partial outbox, FULL is D.
    Staging slots of L chunks (none where L = 1: nobody pushes), two banks of outbox blocks, two banks of n_part spares, and an inbox of L blocks
    a generation. On one node rows are summed straight into the output, and only the slots are left. Raises P006.
    Source: paper sections 4.1, 4.2 and 5.2.
    """
    count, elems = chunk_elems(packed_elems, lanes=lanes, knobs=knobs, grad_item_bytes=grad_item_bytes)
    slots = knobs.n_stg * (lanes if lanes > 1 else 0) * lanes * elems * grad_item_bytes
    if nodes == 1:
        return slots
    blocks = 2 * outbox_blocks(nodes, knobs) + 2 * knobs.n_part + lanes * inbox_generations(nodes, knobs.W)
    return slots + blocks * FP32_BYTES * lanes * count * elems


def outbox_blocks(nodes: int, knobs: Knobs) -> int:
    """n_out as a number: blocks of an outbox bank, D = n_part*(M-1) where it is full."""
    return knobs.n_part * (nodes - 1) if isinstance(knobs.n_out, Full) else knobs.n_out


def reduce_staging_bound(packed_elems: int, *, nodes: int, lanes: int, knobs: Knobs, grad_item_bytes: int) -> int:
    """An upper bound in bytes on `reduce_staging_bytes`, whole staging slots counted: (n_stg*L*b/4 + L*n_par + 2*n_out + 2*n_part) blocks.

    Source: paper eq. 10, where L = 8, b = 2, n_part = 1 and a block is S_fp32. Raises P006.
    """
    block = reduce_block_bytes(packed_elems, lanes=lanes, knobs=knobs, grad_item_bytes=grad_item_bytes)
    blocks = Fraction(knobs.n_stg * lanes * grad_item_bytes, FP32_BYTES) + lanes * inbox_generations(nodes, knobs.W) + 2 * outbox_blocks(nodes, knobs) + 2 * knobs.n_part
    return int(blocks * block)


def staging_share(mode: Mode, *, nodes: int, k: int, generations: int = 2) -> Fraction:
    """The bound on a reduce-scatter's staging as a share of N*S, for eight lanes, bf16 gradients, one pass, two staging slots and an outbox of the mode.

    nodes: M.  k: transfers a round.  generations: n_par, 1 or 2.
    Source: paper eqs. 11 (in place) and 12 (slot reuse).
    """
    assert generations in (1, 2), generations
    if mode is Mode.IN_PLACE:
        return Fraction(1, 2) + Fraction(2 * generations + 2, nodes)
    return Fraction(2 * k + 4 * generations + 5, 2 * nodes)


def _rounds(contributors: int, k: int) -> tuple[int, ...]:
    return tuple(min(k, contributors - at) for at in range(0, contributors, k))


def _whole_rows(elems: int) -> int:
    return -(-elems // CHUNK_ALIGNMENT_ELEMS) * CHUNK_ALIGNMENT_ELEMS
