"""Every target gives the bits of the reference: the same cases, one line a target."""
from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conform_cases import AWKWARD, GATHER, Case, few, many, reduce

from tidec.inputs.ask import Ask, Collective, Mode
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import read_settings
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.interpret.bits import Given, Outputs, carry_out
from tidec.plan.ir import Plan
from tidec.plan.lower import lower
from tidec.run.compare import digest, first_difference, max_error_ulps
from tidec.run.host import HostJob, run_host
from tidec.run.made import Kind, make
from tidec.size.solver import choose

IN_PLACE, SLOT_REUSE = Mode
CALLS, SEEDS = 5, 3
Target = Callable[[Path, Plan, Given, dict], Outputs]


def on_python(library: Path, plan: Plan, given: Given, options: dict) -> Outputs:
    """The reference itself, in a drawn order."""
    return carry_out(plan, given, seed=7, **options)


def on_host(**how: bool) -> Target:
    def run(library: Path, plan: Plan, given: Given, options: dict) -> Outputs:
        ran = run_host(HostJob(library, plan, given, first_seed=1, num_seeds=SEEDS, **options, **how))
        assert len(set(ran.digests)) == 1, f"seeds 1 to {SEEDS} give different bits"
        return ran.outputs

    return run


# A GPU target is one line more: what it runs, and the marker of its tests.
TARGETS: dict[str, Target] = {
    "python": on_python, "host": on_host(), "host, a thread a stream": on_host(is_in_process=True, is_threaded=True),
    "host, drawn op by op": on_host(is_in_process=True), "host, scalar": on_host(is_in_process=True, is_scalar=True),
}


def conform(case: Case, target: Target, library: Path, *, kind: Kind = Kind.NUMBERS, accumulate: bool, alpha: float) -> Outputs:
    given = make(case.plan, calls=CALLS, seed=11, kind=kind, accumulate=accumulate, is_poisoned=True)
    options = dict(alpha=alpha, accumulate=accumulate, is_poisoned=True)
    wanted = carry_out(case.plan, given, **options)
    got = target(library, case.plan, given, options)
    assert first_difference(case.plan, got, wanted) is None, f"{case.name}: {first_difference(case.plan, got, wanted)}"
    return got


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_gives_the_reference_bits(name, hosted):
    cases = few()
    library = hosted([c.plan for c in cases])
    for i, case in enumerate(cases):
        conform(case, TARGETS[name], library, accumulate=i % 2 == 1, alpha=0.3)


# Modes and knobs of one topology under which sums keep their order. With one lane passes do too; with several they move sub-slices to other lanes.
ALIKE = {
    "5x2": ((IN_PLACE, ()), (SLOT_REUSE, ("k=1",)), (IN_PLACE, ("n_stg=1", "chunks=4")), (SLOT_REUSE, ("stripes=3", "chunks=6", "n_out=2"))),
    "3x1": ((IN_PLACE, ()), (SLOT_REUSE, ("n_part=3", "chunks=2"))),
}


def chosen(topo: str, mode: Mode, settings: tuple[str, ...]) -> Plan:
    """The reduce-scatter that is planned in that mode where so much is set."""
    topology = parse_topology(topo)
    group = Group("g", 1, tuple(Parameter(f"p{i}", shape, Dtype.BF16) for i, shape in enumerate(AWKWARD)))
    knobs = choose(topology, group, mode=mode, settings=read_settings(settings, topology.lanes)).knobs
    return lower(Ask(topology, group, Lowering.P2P, knobs, mode), Collective.REDUCE_SCATTER)


def test_both_modes_and_all_knobs_that_keep_the_grouping_give_one_digest(hosted):
    plans = {topo: [chosen(topo, *one) for one in ways] for topo, ways in ALIKE.items()}
    library = hosted([p for ways in plans.values() for p in ways])
    found: dict[str, set[str]] = {}
    for topo, ways in plans.items():
        assert len({p.digest for p in ways}) == len(ways)
        digests = found[topo] = set()
        for i, plan in enumerate(ways):
            given = make(plan, calls=CALLS, seed=11, is_poisoned=True)
            digests.add(digest(plan, carry_out(plan, given, alpha=0.3, is_poisoned=True)))
            job = HostJob(library, plan, given, alpha=0.3, is_poisoned=True, first_seed=1, num_seeds=SEEDS, is_in_process=i > 0, sum_ctas=1 + i, land_ctas=3)
            digests.add(digest(plan, run_host(job).outputs))
        assert len(digests) == 1, topo
    other = chosen("5x2", IN_PLACE, ("W=1",))
    assert digest(other, carry_out(other, make(other, calls=CALLS, seed=11, is_poisoned=True), alpha=0.3, is_poisoned=True)) not in found["5x2"], "a wave of another width adds in another order"


def test_the_outbox_of_slot_reuse_is_partial_and_takes_less():
    full, partial = chosen("5x2", IN_PLACE, ("k=1",)), chosen("5x2", SLOT_REUSE, ("k=1",))
    assert dict(full.program.knobs)["n_out"] == "full" and dict(partial.program.knobs)["n_out"] == 2
    assert full.arena.staging_bytes - partial.arena.staging_bytes == 2 * (4 - 2) * next(r.strides[1] for r in full.arena.regions if r.buffer == "outbox") > 0


def test_nan_infinities_and_minus_zero_give_what_an_fp32_sum_gives(hosted):
    cases = few()
    library = hosted([c.plan for c in cases])
    for i, case in enumerate(c for c in cases if c.plan.collective is not GATHER and c.plan.layout.packed_elems > 1):
        got = conform(case, TARGETS["host, drawn op by op"], library, kind=Kind.CLASSES, accumulate=i % 2 == 1, alpha=-0.5)
        numbers = np.concatenate([x.view(np.float32) for row in got for x in row])
        assert np.isnan(numbers).any() and (case.plan.ranks > 4 or np.isinf(numbers).any()) and np.isfinite(numbers).any(), case.name


def test_sums_of_integers_are_exact(hosted):
    cases = few()
    library = hosted([c.plan for c in cases])
    for i, case in enumerate(cases):
        options = dict(alpha=2.0, accumulate=i % 2 == 1)
        given = make(case.plan, calls=CALLS, kind=Kind.INTEGERS, accumulate=i % 2 == 1, is_poisoned=True)
        got = TARGETS["host, drawn op by op"](library, case.plan, given, {**options, "is_poisoned": True})
        assert max_error_ulps(case.plan, given, got, **options) == 0.0, case.name


def test_numbers_are_rounded_at_each_addition_only(hosted):
    case = reduce("4x2", "awkward", "stripes", Dtype.FP32)
    given = make(case.plan, calls=CALLS, is_poisoned=True)
    error = max_error_ulps(case.plan, given, TARGETS["host, drawn op by op"](hosted([case.plan]), case.plan, given, dict(is_poisoned=True)))
    # Eight terms: seven additions, each at most half a unit of the sum of all sizes.
    assert 0.0 < error <= 3.5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["python", "host"])
def test_a_target_gives_the_reference_bits_everywhere(name, hosted):
    cases = many()
    library = hosted([c.plan for c in cases])
    for i, case in enumerate(cases):
        conform(case, TARGETS[name], library, accumulate=i % 2 == 1, alpha=1.0 / case.plan.ranks)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("-O1",), ("-O2",), ("-O3", "-march=native")], ids=" ".join)
def test_the_compiler_changes_no_bit(flags, hosted):
    cases = few()
    library = hosted([c.plan for c in cases], flags=flags)
    for i, case in enumerate(cases):
        conform(case, TARGETS["host, drawn op by op"], library, accumulate=i % 2 == 1, alpha=0.3)


@pytest.mark.slow
def test_another_compiler_changes_no_bit(hosted, monkeypatch):
    if shutil.which("clang++") is None:
        pytest.skip("clang++ is not installed")
    monkeypatch.setenv("CXX", "clang++")
    cases = few()
    library = hosted([c.plan for c in cases], flags=("-O2", "-DOTHER_COMPILER"))
    for i, case in enumerate(cases):
        conform(case, TARGETS["host, drawn op by op"], library, accumulate=i % 2 == 1, alpha=0.3)
