"""Plans beside stock between real processes: what is told of them, and that nothing is left of them, whatever ends them."""
from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tidec.errors import Exit, TidecError  # noqa: E402
from tidec.inputs.ask import Ask, Collective  # noqa: E402
from tidec.inputs.capability import Lowering  # noqa: E402
from tidec.inputs.knobs import parse_knobs  # noqa: E402
from tidec.inputs.signature import Dtype, Group, Parameter  # noqa: E402
from tidec.inputs.topology import parse_topology  # noqa: E402
from tidec.plan.ir import Plan  # noqa: E402
from tidec.plan.lower import lower  # noqa: E402
from tidec.run.bench import Bench, BenchJob, Measure, Row, Side, run_bench  # noqa: E402
from tidec.run.bench_rank import check_rails  # noqa: E402

# A parameter of which most ranks have nothing, and one whose gradient is not reduced.
SHAPES = ((7, 3), (33,), (1,), (4, 5))
FROZEN = 3


def plan_of(topo: str, collective: Collective, shapes=SHAPES, stored: Dtype = Dtype.BF16) -> Plan:
    topology = parse_topology(topo)
    params = tuple(Parameter(f"p{i}", s, stored, requires_grad=i != FROZEN) for i, s in enumerate(shapes))
    return lower(Ask(topology, Group("g", 1, params, param_dtype=Dtype.BF16), Lowering.P2P, parse_knobs((), topology.lanes, nodes=topology.nodes)), collective)


@pytest.fixture
def job(hosted, rt_kept) -> Callable[..., BenchJob]:
    """`job(*plans)` measures them on the host target, a line each."""

    def make(*plans: Plan) -> BenchJob:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEC_")}
        return BenchJob(plans, hosted(plans), rt_kept, "host", tuple(Measure(p.digest, "g", 0) for p in plans), calls=2, rounds=3, seed=1, deadline_s=60, environment=environment)

    return make


def ranks_of_this() -> dict[int, int]:
    """The processes of ranks that this process has, by rank."""
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        for pid in map(int, (thread / "children").read_text().split()):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"tidec.run.bench_rank" in words:
                found[json.loads(words[-2])["rank"]] = pid
    return found


def test_the_columns_are_those_of_nccl_tests():
    """8 MB in 1 ms on 4 ranks: 8 GB/s, of which a link carries three quarters."""
    row = Row(Measure("d", "g", 8), "all_gather", "bf16", 8_000_000, 4, Side((9e-3, 1e-3, 1e-3), (1e-5,)), Side((3e-3, 1e-3, 2e-3), ()), "stock", None)
    assert row.algorithm_gbps == pytest.approx(8.0) and row.bus_gbps == pytest.approx(6.0) and row.ratio == pytest.approx(2.0)
    assert row.plan.host_us == pytest.approx(10.0) and row.stock.host_us is None


def test_rails_with_an_nccl_that_is_too_old_are_told_what_to_preload():
    rail, flat = plan_of("2x1", Collective.ALL_GATHER), plan_of("1x2", Collective.ALL_GATHER)
    check_rails((flat,), (2, 28, 9))
    check_rails((flat, rail), (2, 31, 2))
    for version, reason in (((2, 28, 9), "torch has loaded 2.28.9"), ((0, 0, 0), "this process has loaded no libnccl.so.2")):
        with pytest.raises(TidecError, match="E006") as stopped:
            check_rails((flat, rail), version)
        said = stopped.value.diagnostics[0]
        assert said.reason == reason and "LD_PRELOAD" in said.help and stopped.value.exit is Exit.ENVIRONMENT


def test_a_killed_rank_is_named_and_none_is_left(job):
    """It is killed once the first line is there: 999 more are to come."""
    asked, seen = job(plan_of("1x2", Collective.ALL_GATHER)), []

    def kill(bench: Bench) -> None:
        seen.append(bench.rows[-1])
        os.kill(ranks_of_this()[1], signal.SIGKILL)

    with pytest.raises(TidecError, match="R001") as stopped:
        run_bench(replace(asked, measures=asked.measures * 1000), watch=kill)
    said = stopped.value.diagnostics[0]
    assert said.sentence == "rank 0.1 was killed by signal 9" and "rank 0.0: " in said.reason and said.help
    assert seen[0].difference is None and len(seen[0].plan.seconds) == len(seen[0].stock.seconds) == 3 and not ranks_of_this()


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(job):
    started = []

    def interrupt(bench: Bench) -> None:
        started.append(ranks_of_this())
        raise KeyboardInterrupt

    asked = job(plan_of("1x2", Collective.REDUCE_SCATTER))
    with pytest.raises(KeyboardInterrupt):
        run_bench(replace(asked, measures=asked.measures * 1000), watch=interrupt)
    assert set(started[0]) == {0, 1} and not ranks_of_this()


@pytest.mark.slow
def test_a_rank_that_stands_still_is_named(job):
    asked = job(plan_of("1x2", Collective.ALL_GATHER))
    with pytest.raises(TidecError, match="R001") as stopped:
        run_bench(replace(asked, measures=asked.measures * 1000, deadline_s=5.0), watch=lambda bench: os.kill(ranks_of_this()[1], signal.SIGSTOP) if 1 in ranks_of_this() else None)
    said = stopped.value.diagnostics[0]
    assert said.sentence.startswith("rank 0.0 stops: ") and "rank 0.1 did not end, and was killed" in said.reason and not ranks_of_this()


@pytest.mark.slow
@pytest.mark.parametrize(("topo", "shapes", "checked"), [
    ("2x2", SHAPES, ("stock", "the reference")), ("1x3", ((1025, 1100), (5,)), ("stock", "stock, of exact sums")), ("1x2", SHAPES, ("stock", "stock")),
])
def test_bits_are_held_against_what_there_is(job, topo, shapes, checked):
    bench = run_bench(job(*(plan_of(topo, c, shapes) for c in Collective)))
    assert [row.checked for row in bench.rows] == list(checked) and not any(row.difference for row in bench.rows)
    assert [row.collective for row in bench.rows] == ["all_gather", "reduce_scatter"] and all(row.plan.us > 0 < row.stock.us for row in bench.rows)
    assert bench.machine.copy_gbps > 0 and bench.machine.gpus == ()


@pytest.mark.slow
def test_parameters_that_are_cast_are_cast_by_both(job):
    (row,) = run_bench(job(plan_of("1x2", Collective.ALL_GATHER, stored=Dtype.FP32))).rows
    assert row.difference is None and row.dtype == "bf16" and row.size_bytes == 2 * 2 * (12 + 17 + 1 + 10)


@pytest.mark.slow
def test_a_library_of_other_plans_is_told(job):
    asked = job(plan_of("1x2", Collective.ALL_GATHER))
    other = plan_of("1x2", Collective.ALL_GATHER, ((3, 3),))
    with pytest.raises(TidecError, match="E002"):
        run_bench(replace(asked, plans=(other,), measures=(Measure(other.digest, "g", 0),)))
    assert not ranks_of_this()
