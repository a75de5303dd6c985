"""Knobs are chosen from rates and memory, alike on every machine, and say which term decided."""
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

from tidec.errors import TidecError
from tidec.inputs.ask import Mode
from tidec.inputs.knobs import FULL, NOTHING_SET, Knobs, num_chunks, read_settings
from tidec.inputs.topology import Topology
from tidec.size.memory import outbox_depth, reduce_block_bytes, reduce_staging_bytes
from tidec.size.solver import MAX_SHARDS, PROVED_LANES, SMALL_BYTES, Choice, Class, classes, num_rounds, solve

MIB = 2**20
ROOT = Path(__file__).resolve().parent.parent.parent


def choice(topo, output_mib, *, mode=Mode.IN_PLACE, item=2, budget=None, settings=(), **rates) -> Choice:
    nodes, lanes = map(int, topo.split("x"))
    return solve(Topology(nodes, lanes, **rates), packed_elems=output_mib * MIB // 4, grad_item_bytes=item, mode=mode, budget_bytes=budget,
                 settings=read_settings(settings, lanes) if settings else NOTHING_SET)


def why(found: Choice, name: str) -> str:
    (term,) = [t for t in found.terms if t.name == name]
    return str(term)


def test_rounds_of_a_pass_by_hand():
    # Nine others, eight a wave: 8 and 1. With k = 4: two rounds and one; with k = 3: three and one.
    assert [num_rounds(10, 8, k) for k in (1, 2, 3, 4, 8)] == [9, 5, 4, 3, 2]
    assert num_rounds(1, 8, 4) == 0 and num_rounds(8, 8, 4) == 2 and num_rounds(9, 8, 4) == 2


def test_rounds_are_those_that_a_walk_over_waves_makes():
    for seed in range(300):
        rng = random.Random(seed)
        nodes, width, k = rng.randrange(1, 200), rng.randrange(1, 17), rng.randrange(1, 17)
        walked = sum(-(-len(range(at, min(at + width, nodes))) // k) for at in range(1, nodes, width))
        assert num_rounds(nodes, width, k) == walked, f"seed {seed}"


def test_k_is_widened_only_where_rounds_cost_a_tenth_of_the_wire():
    # Seven blocks at 47.5 GB/s against four rounds of 1.3 ms: 32 MiB take 4.94 ms, so 5.2 ms of waits are 105 percent; 512 MiB take 79.1 ms, of which they are 6.6.
    assert why(choice("8x8", 32), "k") == "k = 4: 4 rounds of 1.3 ms with k = 2 would be 105 % of the 4.94 ms on the wire"
    assert why(choice("8x8", 512), "k") == "k = 2: 4 rounds of 1.3 ms with k = 2 are 6.57 % of the 79.1 ms on the wire"


def test_k_is_no_wider_than_what_there_is_to_send():
    assert why(choice("2x8", 32), "k") == "k = 1: there is one other node"
    assert why(choice("3x8", 32), "k") == "k = 2: a larger one makes no fewer rounds than 1"
    assert why(choice("8x1", 32), "k") == "k = 1: a wave has no more"
    assert choice("4x8", 32).knobs.k == choice("8x4", 32).knobs.k == 4
    assert choice("8x8", 1, settings=("n_out=3",)).knobs.k == 3 and choice("8x8", 1, settings=("W=2",)).knobs.k == 2


def test_waits_that_cost_nothing_leave_k_at_two():
    assert choice("64x8", 1, wait_us=0.0).knobs.k == 2


def test_in_place_has_a_full_outbox_and_slot_reuse_that_of_two_rounds():
    assert choice("64x8", 32).knobs.n_out is FULL
    reuse = choice("64x8", 32, mode=Mode.SLOT_REUSE)
    assert reuse.knobs.n_out == outbox_depth(64, 8, 4, reuse.knobs.n_part) == 8
    assert why(reuse, "n_out") == "n_out = 8: two rounds that follow each other (eq. 9)"
    # Five nodes: four in one round, and with one pass there is no other.
    assert choice("5x8", 1, mode=Mode.SLOT_REUSE).knobs.n_out is FULL


def test_passes_are_the_fewest_whose_staging_is_at_most_21_output_shards():
    # 2*7 outbox blocks, 2 spares, 8 of the inbox, and 8 or, in small chunks, 2 shards of slots: 32 or 26. Two passes halve inbox and slots: 14 + 2 + 4 + 1.
    assert why(choice("8x8", 32), "n_part") == "n_part = 2: 672 MiB of staging, 21 output shards (at most 21; with a pass less 26)"
    assert choice("5x8", 32).knobs.n_part == 1
    # E_sub is rounded up to whole chunks on both sides: sizes that nothing divides decide alike.
    assert solve(Topology(8, 8), packed_elems=2**23 + 1, grad_item_bytes=2).knobs.n_part == 2


def test_a_small_group_is_not_cut_into_passes():
    assert why(choice("8x8", 1), "n_part") == "n_part = 1: 32.0 MiB of staging, 32 output shards; up to 64.0 MiB no memory is worth another pass"


def test_where_no_passes_are_enough_there_is_one():
    assert why(choice("64x8", 128), "n_part") == "n_part = 1: 18.2 GiB of staging, 146 output shards; with no number of passes at most 21"


def test_a_stated_budget_takes_more_passes_and_never_fewer():
    assert choice("8x8", 32, mode=Mode.SLOT_REUSE, budget=400 * MIB).knobs.n_part == 3
    assert choice("8x8", 32, budget=80 * 2**30).knobs == choice("8x8", 32).knobs
    assert why(choice("8x8", 32, budget=300 * MIB), "n_part").endswith("with no number of passes at most 21 and the stated 300 MiB")
    for seed in range(150):
        rng = random.Random(seed)
        asked = dict(topo=f"{rng.randrange(1, 70)}x{rng.choice((1, 2, 3, 4, 8, 16))}", output_mib=rng.choice((1, 2, 7, 32, 128)), item=rng.choice((2, 4)), mode=rng.choice(list(Mode)))
        free, tight = choice(**asked).knobs, choice(**asked, budget=rng.choice((5, 50, 500)) * MIB).knobs
        assert tight.n_part >= free.n_part, f"seed {seed}"


def test_staging_that_was_chosen_is_as_small_as_its_reason_says():
    for seed in range(200):
        rng = random.Random(seed)
        nodes, lanes, item, mode = rng.randrange(1, 80), rng.choice(PROVED_LANES), rng.choice((2, 4)), rng.choice(list(Mode))
        elems = rng.randrange(1, 2 ** rng.randrange(1, 30))
        found = solve(Topology(nodes, lanes), packed_elems=elems, grad_item_bytes=item, mode=mode)
        staging = reduce_staging_bytes(elems, nodes=nodes, lanes=lanes, knobs=found.knobs, grad_item_bytes=item)
        shard = found.knobs.n_part * reduce_block_bytes(elems, lanes=lanes, knobs=found.knobs, grad_item_bytes=item)
        said = why(found, "n_part")
        assert ("no number of passes" in said) == (staging > max(MAX_SHARDS * shard, SMALL_BYTES)), f"seed {seed}: {said}"
        assert mode is Mode.IN_PLACE or "no number of passes" not in said, f"seed {seed}: {said}"


def test_chunks_are_small_where_their_meetings_cost_little():
    # A block of 128 MiB is on the wire for 2.83 ms, four meetings of 7.6 us are 1 percent of it; of 1 MiB it is the other way round.
    assert why(choice("2x8", 128), "chunks") == "chunks = 4: 4 meetings of 7.6 us are 1.08 % of a block's 2.83 ms"
    assert why(choice("2x8", 1), "chunks") == "chunks = 1: 4 meetings of 7.6 us would be 138 % of a block's 22.1 us"
    assert why(choice("2x1", 128), "chunks") == "chunks = 1: nothing is pushed where a node has one lane"
    # Two lanes of one node: 8 MiB of fp32 are 4 MiB of bf16 pushes, 10.6 us: half of it and two meetings of 7.6 us are more than all of it and one.
    # 32 MiB: 42.5 us, and 50.1, 36.4, 41.0 us for 1, 2 and 4 chunks.
    assert [num_chunks(choice("1x2", mib).knobs) for mib in (8, 32, 64, 128, 256, 512, 1024)] == [1, 2, 4, 4, 8, 8, 8]
    assert [choice("1x2", mib).knobs.n_stg for mib in (8, 32, 64, 128, 256, 512, 1024)] == [1, 2, 4, 4, 3, 3, 3]
    assert why(choice("1x2", 32), "chunks") == "chunks = 2: the first push and 2 meetings of 7.6 us take 36.4 us beside the sums, with 4 it would be 41 us"


def measured() -> dict[tuple[str, float], dict[tuple[int, int], float]]:
    """Reduce-scatters on two H200s, by group and MiB of a shard: by chunks and the slots that a call of so many can use, the mean time in us."""
    found = {}
    for row in json.loads((ROOT / "examples/measure/results/pair.json").read_text())["rows"]:
        if row["collective"] == "reduce_scatter" and row["counters"] == "beside the streams":
            found.setdefault((row["group"], row["shard_mib"]), {}).setdefault((row["chunks"], min(row["chunks"], row["n_stg"])), []).append(row["ours_us"])
    return {group: {knobs: mean(times) for knobs, times in rows.items()} for group, rows in found.items()}


def test_chunks_and_slots_of_one_node_are_those_that_were_measured_within_two_percent_of_the_best():
    rows = measured()
    assert [group for group, _ in rows] == ["equal8", "equal32", "equal128"]
    for (group, mib), times in rows.items():
        knobs = solve(Topology(1, 2), packed_elems=int(mib * MIB) // 2, grad_item_bytes=2).knobs
        assert times[num_chunks(knobs), knobs.n_stg] <= 1.02 * min(times.values()), group


def test_why_so_many_slots():
    assert why(choice("1x2", 8), "n_stg") == "n_stg = 1: a call has 1 chunk and uses no other slot"
    assert why(choice("1x2", 32), "n_stg") == "n_stg = 2: a call has 2 chunks and uses no other slot"
    assert why(choice("1x2", 128), "n_stg") == "n_stg = 4: a call has 4 chunks and uses no other slot, as the fastest measured of 32 MiB a rank (two H200s)"
    assert why(choice("1x2", 256), "n_stg") == "n_stg = 3: a fourth slot brought half a percent to 8 chunks (measured on two H200s)"
    assert why(choice("1x1", 256), "n_stg") == "n_stg = 2: nothing is pushed where a node has one lane"
    assert why(choice("2x2", 256), "n_stg") == "n_stg = 2: more slots bring little (measured on a pair of H200s)"
    for setting in ("chunks=5", "n_part=2", "stripes=4", "chunk_bytes=1048576"):
        assert why(choice("1x2", 128, settings=(setting,)), "n_stg") == "n_stg = 2: more are chosen only with one pass of 4 or 8 chunks"


def test_where_memory_is_short_slots_go_before_chunks_are_cut_smaller_and_those_before_another_pass():
    # 128 MiB of output in fp32: four chunks of two lanes' bf16, 32 MiB each.
    found = [choice("1x2", 128, budget=mib * MIB) for mib in (128, 127, 64, 63, 32, 31)]
    assert [(c.knobs.n_part, num_chunks(c.knobs), c.knobs.n_stg) for c in found] == [(1, 4, 4), (1, 4, 2), (1, 4, 2), (2, 4, 2), (2, 4, 2), (3, 4, 2)]
    assert why(found[1], "n_stg") == "n_stg = 2: small staging costs less than another pass; 4 would be 128 MiB (at most 21 and the stated 127 MiB)"
    # A set number is kept.
    assert choice("1x2", 128, budget=MIB, settings=("n_stg=3",)).knobs.n_stg == 3


def test_one_node_s_sums_leave_a_gemm_in_one_wave():
    found = choice("1x8", 64)
    assert found.knobs.ctas_sum == 8 and why(found, "ctas_sum").endswith("a GEMM of one wave leaves 8 on 132 SMs")
    assert why(found, "ctas_land") == "ctas_land = 1: nothing lands on one node"
    assert choice("1x8", 64, sms=148).knobs.ctas_sum == 16


def test_what_is_set_is_kept_and_says_so():
    settings = ("W=4", "k=3", "n_stg=3", "n_part=2", "n_out=3", "chunks=5", "stripes=5", "ctas_sum=16", "ctas_land=2")
    found = choice("8x8", 32, settings=settings)
    assert found.knobs == Knobs(4, 3, n_stg=3, n_part=2, n_out=3, chunks=5, stripes=5, ctas_sum=16, ctas_land=2)
    assert [str(t) for t in found.terms] == [f"{name} = {value}: set" for name, value in (s.split("=") for s in sorted(settings, key=lambda s: [t.name for t in found.terms].index(s.split("=")[0])))]
    assert all(t.is_set for t in found.terms)
    assert choice("8x8", 32, settings=("chunk_bytes=1048576", "cast=1")).knobs == Knobs(8, 4, n_part=2, chunk_bytes=2**20, cast=True)
    assert not any(t.is_set for t in choice("8x8", 32).terms)


def test_chunk_bytes_that_make_too_many_chunks_are_refused():
    with pytest.raises(TidecError) as caught:
        choice("8x8", 32, settings=("chunk_bytes=1000",))
    assert caught.value.diagnostics[0].code == "P006"


def test_every_number_that_is_not_set_has_a_term():
    names = [t.name for t in choice("3x4", 2).terms]
    assert names == ["W", "k", "stripes", "n_part", "n_out", "chunks", "n_stg", "ctas_sum", "ctas_land"]
    assert all(t.why for t in choice("3x4", 2).terms)


def class_of(lanes: int, knobs: Knobs) -> Class:
    assert knobs == Knobs(knobs.W, knobs.k, n_stg=knobs.n_stg, n_part=knobs.n_part, n_out=knobs.n_out, chunks=knobs.chunks, ctas_sum=knobs.ctas_sum, ctas_land=knobs.ctas_land)
    return Class(lanes, knobs.W, knobs.k, knobs.n_part, knobs.n_out, num_chunks(knobs), knobs.n_stg)


def test_every_choice_lies_in_the_stated_classes_and_every_class_is_chosen():
    """Slow and fast waits give every k; budgets that just fit a number of passes, or two slots, give every n_part and n_stg; sizes, and a slow rail, give every number of chunks."""
    stated, reached = set(classes()), set()
    assert len(stated) == len(classes()) == 121
    for lanes in PROVED_LANES:
        for nodes in (*range(1, 11), 17):
            for mode in Mode:
                for wait_us in (0.0, 1e9):
                    for elems in (2**14, *(2**power for power in range(19, 28))) if nodes == 1 else (2**14, 2**18, 2**24):
                        asked = dict(packed_elems=elems, grad_item_bytes=2, mode=mode)
                        topology = Topology(nodes, lanes, wait_us=wait_us, nic_gbps=1.0 if elems == 2**18 else None)
                        free = solve(topology, **asked).knobs
                        for parts in (0, 1, 2, 3, 4):
                            depth = outbox_depth(nodes, free.W, free.k, max(1, parts))
                            n_out = depth if mode is Mode.SLOT_REUSE and depth < parts * (nodes - 1) else FULL
                            fits = replace(free, n_part=max(1, parts), n_out=n_out, chunks=4 if lanes > 1 else 0)
                            staging = reduce_staging_bytes(elems, nodes=nodes, lanes=lanes, knobs=fits, grad_item_bytes=2)
                            found = solve(topology, **asked, budget_bytes=staging if parts else None).knobs
                            assert class_of(lanes, found) in stated, (nodes, lanes, mode, wait_us, elems, parts)
                            reached.add(class_of(lanes, found))
                        few = reduce_staging_bytes(elems, nodes=nodes, lanes=lanes, knobs=replace(free, n_stg=2), grad_item_bytes=2)
                        reached.add(class_of(lanes, solve(topology, **asked, budget_bytes=few).knobs))
    assert reached == stated, sorted(map(str, stated ^ reached))


def test_drawn_choices_lie_in_the_stated_classes():
    stated = set(classes())
    for seed in range(800):
        rng = random.Random(seed)
        nodes = rng.choice((rng.randrange(1, 12), rng.randrange(1, 1101)))
        lanes, elems = rng.choice(PROVED_LANES), rng.randrange(1, 2 ** rng.randrange(1, 32))
        budget = rng.choice((None, 4 * elems * rng.randrange(1, 60)))
        rates = rng.choice(({}, {"wait_us": 20.0}, {"wait_us": 1e6}, {"nic_gbps": 400.0, "push_gbps": 700.0}))
        found = solve(Topology(nodes, lanes, **rates), packed_elems=elems, grad_item_bytes=rng.choice((2, 4)), mode=rng.choice(list(Mode)), budget_bytes=budget)
        assert class_of(lanes, found.knobs) in stated, f"seed {seed}"


@pytest.mark.slow
def test_every_choice_lies_in_the_stated_classes_for_every_node_count():
    stated = set(classes())
    for nodes in range(1, 1101):
        for lanes in PROVED_LANES:
            for size in (MIB, 64 * MIB, 8192 * MIB):
                for mode in Mode:
                    elems = -(-size // (2 * nodes * lanes))
                    found = solve(Topology(nodes, lanes), packed_elems=elems, grad_item_bytes=2, mode=mode)
                    assert class_of(lanes, found.knobs) in stated, (nodes, lanes, size, mode)


def test_two_interpreters_choose_alike():
    text = ("from tidec.size.solver import *\nfrom tidec.inputs.topology import Topology\n"
            "print([str(t) for m in (1, 8, 9) for t in solve(Topology(m, 8, nic_gbps=47.6), packed_elems=10**7 + m, grad_item_bytes=2).terms])")
    outputs = {subprocess.run([sys.executable, "-c", text], env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True, timeout=60).stdout
               for seed in ("1", "2")}
    assert len(outputs) == 1


@pytest.mark.parametrize("rate", [5e-324, 1e-30, 1e30, 1.7e308])
def test_rates_of_any_size_give_knobs_and_words(rate):
    for nodes in (1, 9):
        for name in ("nic_gbps", "push_gbps", "sum_gbps_per_cta", "land_gbps_per_cta", "land_cap_gbps", "wait_us"):
            found = solve(Topology(nodes, 8, **{name: rate}), packed_elems=2**40, grad_item_bytes=4)
            assert class_of(8, found.knobs) in classes(), name
            assert 1 <= found.knobs.ctas_sum <= 16 and 1 <= found.knobs.ctas_land <= 16 and all(len(t.why) < 250 for t in found.terms), name


@pytest.mark.parametrize("setting", ["W=4", "k=3", "n_stg=1", "stripes=2"])
def test_what_is_set_to_another_class_has_one_pass_of_whole_blocks_since_no_proof_of_more_is_shipped(setting):
    knobs = solve(Topology(8, 8), packed_elems=4 * 2**20, grad_item_bytes=2, settings=read_settings((setting,), 8)).knobs
    assert (knobs.n_part, knobs.chunks, knobs.n_out) == (1, 0, FULL)
    chosen = solve(Topology(8, 8), packed_elems=4 * 2**20, grad_item_bytes=2, settings=read_settings(("W=8", "k=2"), 8)).knobs
    assert (chosen.n_part, chosen.chunks) == (2, 4)
    both = solve(Topology(8, 8), packed_elems=4 * 2**20, grad_item_bytes=2, settings=read_settings((setting, "n_part=3"), 8)).knobs
    assert (both.n_part, both.chunks) == (3, 0)


@pytest.mark.parametrize("setting", ["W=4", "k=3", "n_stg=1", "n_stg=4", "n_stg=8"])
def test_one_node_has_the_chunks_that_suit_it_whatever_else_is_set(setting):
    free = choice("1x8", 512)
    knobs = choice("1x8", 512, settings=(setting,)).knobs
    assert (knobs.n_part, num_chunks(knobs)) == (free.knobs.n_part, num_chunks(free.knobs)) == (1, 8)
    assert choice("1x8", 512, settings=("stripes=2",)).knobs.chunks == 0
