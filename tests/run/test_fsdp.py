"""A model under fully_shard that runs by plans has the bits of stock FSDP2, and its collectives did run by plans."""
from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.lower import lower
from tidec.run.team import memory_line


@dataclass(frozen=True)
class Expected:
    """What does not run by plans in a case, by hand from what the case does.

    stock: calls of groups with a plan, by code.  whole: reasons of groups without one.  apart: their calls.  added: reduce-scatters that add to gradients.
    said: how what stock says begins, which tidec says too.
    """

    stock: dict[str, int] = field(default_factory=dict)
    whole: tuple[str, ...] = ()
    apart: int = 0
    added: int = 0
    said: tuple[str, ...] = ()


PLANNED = Expected()

# Of fsdp_worker.py: five groups, the root kept unsharded.
CASES: dict[str, Expected] = {
    "plain": PLANNED,
    "frozen and unused": PLANNED,
    "fp32": PLANNED,
    # In ten of twenty steps, two of three micro-batches add to the gradients of five groups; the others keep gradients, and reduce them in fp32.
    "accumulating": Expected(added=100),
    "checkpointing": PLANNED,
    "last block kept": PLANNED,
    "evaluating": PLANNED,
    "unsharding": PLANNED,
    "two forwards": PLANNED,
    "lent by a library": PLANNED,
    "prefetching 1": PLANNED,
    # Two blocks are gathered while a third one computes, and a ring has two landings: once in every forward and every backward pass of twenty steps.
    "prefetching 2": Expected({"F201": 40}),
    "changed in place": Expected(said=("setStorage",)),
    "assigning": PLANNED,
    "clipping": PLANNED,
    "optimizer in backward": PLANNED,
    "divide factor 1, sums forced": PLANNED,
    "sums forced": PLANNED,
}

# Of fsdp_wide.py.
WIDE: dict[str, Expected] = {
    "hybrid": PLANNED,
    "hybrid accumulating": PLANNED,
    "hybrid sometimes": PLANNED,
    # pytorch#153302: both gathers of two blocks, four steps.
    "resharded to two": Expected({"F105": 16}),
    # One of two blocks: two gathers and a reduction, four steps.
    "tensor parallel": Expected(whole=("F102",), apart=12),
    # A frozen block is gathered, and reduces nothing.
    "frozen block": PLANNED,
    # Reductions in fp16 of three groups, three steps; the gathers run by plans.
    "half": Expected({"P012": 9}),
    # Two gathers of two blocks and a reduction of the third one, three steps.
    "own comms": Expected({"F106": 12, "F107": 3}),
    "no rows": PLANNED,
    # The last two steps of a parameter that was frozen at install.
    "refrozen": Expected({"F204": 2}),
    # Two blocks add to gradients in two of three steps.
    "compiled": Expected(added=4),
    "compiled by inductor": Expected(added=4),
    # NVIDIA-NeMo/Automodel#3373: recomputing prefetches three blocks for nothing in each of four steps.
    "reentrant": Expected({"F201": 12}),
    "not reentrant": PLANNED,
    # Two of three micro-batches of three steps, three groups; once more where gradients are kept as zeros.
    "summed by the plan": Expected(added=21),
    "optimizer before": PLANNED,
    "optimizer after": PLANNED,
    "fused before": PLANNED,
    "from meta": PLANNED,
    "averaging": PLANNED,
    "forced sums": PLANNED,
    "pipelined": PLANNED,
    "pipelined, sharing": PLANNED,
}

# Of fsdp_odd.py. Every step adds to the gradients of the one before.
ODD: dict[str, Expected] = {
    "negated": Expected(added=2),
    "under way": Expected(added=2),
    # The root is unsharded when the optimizer is made, as in stock, so that nothing clears its gradients.
    "inference first": Expected(added=1),
    "same rows": Expected(added=4),
}


def test_memory_is_told_by_collective():
    """Two landings of 4 x 2 MiB and a shard of 2 MiB."""
    group = Group("g", 1, (Parameter("w", (4096, 1024), Dtype.BF16),))
    ask = Ask(parse_topology("1x4"), group, Lowering.P2P, parse_knobs((), 4, nodes=1))
    gather, reduce = (lower(ask, c) for c in Collective)
    assert gather.arena.bytes == 18 * 2**20
    told = "tidec: 2 plans take 34.0 MiB of shared memory on every rank: 18.0 MiB for all-gathers and 16.0 MiB for reduce-scatters"
    assert memory_line((gather, reduce)) == told and reduce.arena.bytes == 16 * 2**20
    assert memory_line((gather,)) == "tidec: 1 plan takes 18.0 MiB of shared memory on every rank: 18.0 MiB for all-gathers and 0 B for reduce-scatters"


DEFAULT = ("plain", "lent by a library/slot_reuse")


def check_case(case: str, ranks: list[dict], expected: Expected) -> None:
    for rank, found in enumerate(ranks):
        assert found["differs"] == [], f"{case}: rank {rank}"
        assert found["seen"] > 1
        assert (found["stock"], tuple(found["whole"]), found["added"]) == (expected.stock, expected.whole, expected.added), f"{case}: rank {rank}"
        assert len(found["said"]) == len(expected.said) and all(map(str.startswith, found["said"], expected.said)), f"{case}: rank {rank}: {found['said']}"
        assert found["by_plan"] == found["asked"] - sum(expected.stock.values()) - expected.apart > 0, f"{case}: rank {rank}"
        # Of every ring two landings may be in use.
        assert found["is_as_planned"] and found["over"] > 0 and found["under way"] <= 4, f"{case}: rank {rank}: {found}"


def test_a_model_by_plans_has_stocks_bits(job):
    found = job("fsdp_worker.py", *DEFAULT).results
    for case in DEFAULT:
        check_case(case, found[case], CASES[case.partition("/")[0]])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["in_place", "slot_reuse"])
def test_all_cases_have_stocks_bits(job, mode):
    found = job("fsdp_worker.py", *(f"{name}/{mode}" for name in CASES), timeout_s=900).results
    for name, expected in CASES.items():
        check_case(name, found[f"{name}/{mode}"], expected)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["in_place", "slot_reuse"])
def test_the_less_common_uses_of_fsdp2_have_stocks_bits(job, mode):
    found = job("fsdp_wide.py", *(f"{name}/{mode}" for name in WIDE), timeout_s=900).results
    for name, expected in WIDE.items():
        check_case(name, found[f"{name}/{mode}"], expected)


@pytest.mark.slow
def test_odd_gradients_groups_and_first_calls_have_stocks_bits(job):
    cases = [*ODD, "negated/slot_reuse", "under way/slot_reuse"]
    found = job("fsdp_odd.py", *cases).results
    for case in cases:
        check_case(case, found[case], ODD[case.partition("/")[0]])


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3])
def test_other_numbers_of_ranks_have_stocks_bits(job, world):
    """Three ranks: rows do not divide, and of two rows one rank has none. Sums are forced, since 1/3 is no binary number (see the next test)."""
    cases = ("sums forced", "plain", "frozen and unused", "clipping") if world == 2 else ("sums forced", "sums forced/slot_reuse", "divide factor 1, sums forced")
    found = job("fsdp_worker.py", *cases, world=world).results
    for case in cases:
        check_case(case, found[case], CASES[case.partition("/")[0]])


@pytest.mark.slow
def test_wide_blocks_of_two_ranks_have_stocks_gradients(job):
    """Of 64 x 128 rounded gradients some are -0 on both ranks."""
    found = job("fsdp_worker.py", "accumulating", world=2, environment={"WORKER_WIDTH": "64"}).results
    check_case("accumulating", found["accumulating"], CASES["accumulating"])


@pytest.mark.slow
def test_three_ranks_differ_from_stock_by_the_rounding_of_a_third(job):
    """Stock divides the sum by 3, tidec multiplies it with fp32(1/3): 1 unit in the last place of a gradient. Tolerance: 2 units, relative to the gradient."""
    (ranks,) = job("fsdp_close.py", "thirds", world=3).results.values()
    assert all(0 < found["units"] <= 2 for found in ranks), ranks


@pytest.mark.slow
def test_unrounded_gradients_train_to_stocks_losses(job):
    """20 steps; sums are added in another order. Of four bf16 gradients most sums are exact in fp32; where gradients are fp32 there has to be a difference.

    Tolerance: 1e-5 of a loss, and of the largest parameter; seen were 5e-7 and 6e-8.
    """
    (ranks,) = job("fsdp_close.py", "unrounded").results.values()
    for r, found in enumerate(ranks):
        assert found.pop("fp32 modes are equal") and found.pop("bf16 modes are equal"), f"rank {r}"
        assert set(found) == {f"{policy} {mode}" for policy in ("fp32", "bf16") for mode in ("in_place", "slot_reuse")}
        for name, differs in found.items():
            assert differs["losses"] <= 1e-5 and differs["params"] <= 1e-5, f"{name}: rank {r}: {differs}"
            assert differs["params"] > 0 or name.startswith("bf16"), f"{name}: rank {r}"


# Public reports whose shapes or ranks are their own: fsdp_reports.py, of four ranks.
REPORTS: dict[str, Expected] = {
    "fresh group": PLANNED,
    # One reduction of both parameters, which stock refuses on every rank in the same words.
    "mixed": Expected({"F202": 1}, said=("AssertionError",)),
    "divided": PLANNED,
    "tied": PLANNED,
    # Three gathers and two reductions of two groups, in one step of three.
    "compiling": Expected({"F207": 5}),
}


@pytest.mark.slow
def test_reports_of_four_ranks_have_stocks_bits(job):
    found = job("fsdp_reports.py", *REPORTS).results
    for case, expected in REPORTS.items():
        check_case(case, found[case], expected)


@pytest.fixture(scope="module")
def of_eight(long_job) -> dict[str, list[dict]]:
    return long_job("fsdp_reports.py", "two rows", "long head", world=8, timeout_s=400).results


@pytest.mark.slow
def test_ranks_without_rows_signal_and_wait_like_the_rest(of_eight):
    """pytorch#137342 (row 1): [2, 4096] over eight ranks. Two steps: an all-gather has 9 + 9 counters of 8 lanes, a reduce-scatter 15 + 15."""
    ranks = of_eight["two rows"]
    for r, found in enumerate(ranks):
        assert found["is_equal"] and found["is_as_planned"] and found["stock"] == {} and found["by_plan"] == 4, f"rank {r}"
        assert found["local"] == ([1, 4096] if r < 2 else [0, 4096])
        assert (found["shard"], found["landing"], found["real"]) == (8192, 65536, 16384)
        assert found["told"] == ranks[0]["told"] == [[36, 36], [30, 30]]


@pytest.mark.slow
def test_rows_that_ranks_do_not_divide_are_one_view_of_the_landing(of_eight):
    """lightning-thunder#248 (row 4): 32001 rows are 4001 on seven of eight ranks and 3994 on the last; the landing has 32008."""
    for r, found in enumerate(of_eight["long head"]):
        assert found["is_equal"] and found["is_as_planned"] and found["stock"] == {}, f"rank {r}"
        assert found["local"] == [4001 if r < 7 else 3994, 64]
        assert found["views"] == [[[32001, 64], True, 0, 8 * 4001 * 64 * 2, True]] * 2


@pytest.fixture(scope="module")
def of_three(long_job) -> dict[str, list[dict]]:
    return long_job("fsdp_reports.py", "copied", "ignored", world=3).results


@pytest.mark.slow
def test_an_ignored_parameter_keeps_the_gradient_of_its_rank(of_three):
    """LoongForge#189 (row 71): [6] is sharded, [5] beside it is not."""
    for r, found in enumerate(of_three["ignored"]):
        assert found["grads"] == [[r + 1.0] * 5] * 2
        assert found["is_close"] and (found["params"], found["real"]) == (["held"], [6])
        assert (found["by_plan"], found["stock"]) == (2, {})


@pytest.mark.slow
def test_a_copy_of_the_state_has_nothing_of_the_arena(of_three):
    """pytorch#82070 (row 76): [7, 2] and [5] over three ranks."""
    ranks = of_three["copied"]
    assert [found["shapes"] for found in ranks] == [[[3, 2], [2]], [[3, 2], [2]], [[1, 2], [1]]]
    assert all(found["offsets"] == [0] for found in ranks)


@pytest.mark.slow
def test_on_one_rank_the_gradient_is_the_local_one(job):
    """pytorch#144045 (row 72)."""
    (found,) = job("fsdp_reports.py", "alone", world=1).results["alone"]
    assert found == {"is_equal": True, "by_plan": 0, "reasons": ["F101 it is sharded over one rank, so there is nothing to gather"]}
