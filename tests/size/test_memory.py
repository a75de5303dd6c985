"""Staging in closed form is what a plan's arena has, and never above the paper's bound."""
import pytest

from tidec.inputs.ask import Ask, Collective, Mode
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import FULL, Knobs, least_outbox
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import Topology
from tidec.plan.lower import lower
from tidec.size.memory import inbox_generations, outbox_depth, reduce_staging_bound, reduce_staging_bytes, staging_share, wave_rounds


def rounds_one_by_one(nodes, width, k, num_parts):
    """Algorithm 1's rounds of a call, walked: passes, waves, rounds."""
    found = []
    for _ in range(num_parts):
        for w in range(-(-nodes // width)):
            remote = [c for c in range(w * width + 1, w * width + width + 1) if c < nodes]
            found += [len(remote[at:at + k]) for at in range(0, len(remote), k)]
    return found


def test_rounds_worked_by_hand():
    # M = 8, W = 8, k = 4: contributors 1..7, a round of four and one of three. M = 12, W = 4, k = 3: 3 1, 3 1, and 9..11.
    assert wave_rounds(8, 8, 4) == ((4, 3),)
    assert wave_rounds(12, 4, 3) == ((3, 1), (3, 1), (3,))
    assert (outbox_depth(8, 8, 4, 1), outbox_depth(8, 8, 4, 2), outbox_depth(12, 4, 3, 1), outbox_depth(12, 4, 3, 2)) == (7, 7, 4, 6)
    assert outbox_depth(64, 8, 4, 1) == 8 and outbox_depth(2, 8, 4, 1) == 1 and outbox_depth(2, 8, 4, 3) == 2
    assert outbox_depth(1, 8, 4, 1) == 0


def test_the_outbox_covers_any_two_neighbouring_rounds_of_a_call():
    for nodes in range(1, 40):
        for width in range(1, 9):
            for k in range(1, 10):
                for num_parts in (1, 2, 3):
                    rounds = rounds_one_by_one(nodes, width, k, num_parts)
                    want = max((a + b for a, b in zip([0, *rounds], rounds)), default=0)
                    depth = outbox_depth(nodes, width, k, num_parts)
                    assert depth == want <= min(2 * min(k, width), num_parts * (nodes - 1)), (nodes, width, k, num_parts)


def drawn_ask(rng) -> tuple[Ask, int]:
    lanes = rng.choice((1, 2, 3, 4, 8))
    nodes = rng.choice((1, 2, 3, rng.randint(4, 20)))
    W, k, n_part, stripes = rng.randint(1, lanes), rng.randint(1, 8), rng.randint(1, 4), rng.choice((1, 1, 2, 4))
    base = Knobs(W, k, n_stg=rng.randint(1, 4), n_part=n_part, stripes=stripes, chunks=rng.choice((0, 1, 3, 8)))
    least = max(1, least_outbox(base, nodes))
    n_out = FULL if rng.random() < 0.4 else rng.randint(least, least + 6)
    dtype = rng.choice((Dtype.BF16, Dtype.FP32))
    params = tuple(Parameter(f"p{i}", (rng.randint(1, 90), rng.randint(1, 30)), dtype, requires_grad=i == 0 or rng.random() < 0.8) for i in range(rng.randint(1, 4)))
    knobs = Knobs(W, k, n_stg=base.n_stg, n_part=n_part, stripes=stripes, chunks=base.chunks, n_out=n_out)
    return Ask(Topology(nodes, lanes), Group("g", 1, params), Lowering.P2P, knobs), dtype.item_bytes


@pytest.mark.parametrize("seed", range(20))
def test_closed_form_staging_is_the_arena_s_and_within_the_bound(draws, seed):
    ask, item_bytes = drawn_ask(draws(seed))
    plan = lower(ask, Collective.REDUCE_SCATTER)
    sizes = dict(nodes=ask.topology.nodes, lanes=ask.topology.lanes, knobs=ask.knobs, grad_item_bytes=item_bytes)
    exact, bound = (f(plan.layout.packed_elems, **sizes) for f in (reduce_staging_bytes, reduce_staging_bound))
    assert exact == plan.arena.staging_bytes <= bound, ask


def test_chunks_of_a_byte_count_are_those_of_the_plan():
    knobs = Knobs(8, 4, chunk_bytes=4096)
    ask = Ask(Topology(4, 8), Group("g", 1, (Parameter("w", (1024, 300), Dtype.BF16),)), Lowering.P2P, knobs)
    plan = lower(ask, Collective.REDUCE_SCATTER)
    assert plan.num_chunks > 1
    assert reduce_staging_bytes(plan.layout.packed_elems, nodes=4, lanes=8, knobs=knobs, grad_item_bytes=2) == plan.arena.staging_bytes


def test_the_bound_is_exact_for_whole_slots():
    # 4x8, W = L, k = 4: E = 1,024 in eight sub-slices of 128, a block of 4,096 bytes. Two slots of 4 blocks, a generation of 8, two banks of 3 and two spares.
    sizes = dict(nodes=4, lanes=8, knobs=Knobs(8, 4), grad_item_bytes=2)
    assert reduce_staging_bytes(1024, **sizes) == reduce_staging_bound(1024, **sizes) == (2 * 4 + 8 * inbox_generations(4, 8) + 2 * 3 + 2) * 4096


@pytest.mark.parametrize("mode, k, generations, want", [(Mode.IN_PLACE, 4, 2, "in_place"), (Mode.SLOT_REUSE, 3, 1, "slot_reuse")])
def test_the_shares_are_eq_10_with_the_outbox_of_the_mode(mode, k, generations, want):
    # eq. 10 with n_stg = 2: (8 + 8 n_par + 2 n_out + 2) S_fp32, and S_fp32 = 2S = 2/(8M) of N*S. n_out = M-1 or 2k.
    M = 64
    n_out = M - 1 if want == "in_place" else 2 * k
    assert staging_share(mode, nodes=M, k=k, generations=generations) * 8 * M == 2 * (8 + 8 * generations + 2 * n_out + 2)
