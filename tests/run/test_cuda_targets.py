"""The loopback and nccl targets on GPUs, bit for bit what the reference gives; and what is said where there is none."""
from __future__ import annotations

from pathlib import Path

import pytest

from tidec.build.cuda import find_tools
from tidec.build.library import build_library
from tidec.build.nccl import find_nccl
from tidec.emit.bundle import write_bundle
from tidec.errors import Exit, TidecError
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.interpret.bits import carry_out
from tidec.plan.ir import Plan
from tidec.plan.lower import lower
from tidec.run.compare import first_difference
from tidec.run.host import HostJob, run_host
from tidec.run.loopback import run_loopback
from tidec.run.made import make
from tidec.verify.certificate import Proved

# Rows and columns that no vector divides, a parameter that most ranks have nothing of, and one of several tiles.
SHAPES = ((37, 24), (33,), (16, 65), (1,), (257, 129), (9, 7))


def built(tmp_path: Path, topo: str, target: str, *, lowering: Lowering = Lowering.P2P,
          dtype: Dtype = Dtype.BF16, delivered: Dtype | None = None, knobs: tuple[str, ...] = ()) -> tuple[Path, tuple[Plan, ...]]:
    """A bundle's library, and its plans. They are proved in tests/verify. dtype, delivered: what shards are stored in, and what they are gathered in."""
    topology = parse_topology(topo)
    group = Group("g", 1, tuple(Parameter(f"p{i}", shape, dtype) for i, shape in enumerate(SHAPES)), param_dtype=delivered)
    ask = Ask(topology, group, lowering, parse_knobs(knobs, topology.lanes, nodes=topology.nodes))
    plans = tuple(Proved(lower(ask, c), '{"schema":"tidec.certificate/1"}') for c in Collective)
    bundle = write_bundle(plans, asks=[ask], out=tmp_path / "bundle")
    try:
        find_tools()
    except TidecError as problem:
        pytest.skip(problem.diagnostics[0].sentence)
    return build_library(bundle.path, target).path, bundle.plans


def compare(plan: Plan, library: Path, run, *, accumulate: bool, **rest: object) -> None:
    given = make(plan, calls=3, accumulate=accumulate, is_poisoned=True)
    ran = run(HostJob(library, plan, given, alpha=1 / plan.ranks, accumulate=accumulate, is_poisoned=True, deadline_s=20.0, **rest))
    wanted = carry_out(plan, given, alpha=1 / plan.ranks, accumulate=accumulate, is_poisoned=True)
    assert first_difference(plan, ran.outputs, wanted) is None
    assert len(set(ran.digests)) == 1


@pytest.mark.gpu
@pytest.mark.parametrize(("topo", "rest"), [
    ("1x2", {}), ("1x8", {}), ("2x1", {}), ("2x4", {}), ("2x4", {"lowering": Lowering.NVLS}), ("4x2", {}), ("5x2", {}), ("3x2", {"dtype": Dtype.FP32, "knobs": ("W=1",)}),
    ("3x4", {"dtype": Dtype.FP16, "knobs": ("n_part=2",)}), ("1x4", {"knobs": ("chunks=3",)}), ("3x2", {"knobs": ("chunks=4", "stripes=2", "n_stg=3")}),
    ("5x2", {"knobs": ("k=1", "n_out=1", "stripes=2")}), ("1x8", {"dtype": Dtype.FP32, "delivered": Dtype.BF16}), ("2x4", {"dtype": Dtype.FP32, "delivered": Dtype.BF16}),
])
def test_virtual_ranks_give_the_references_bits_in_every_run(tmp_path, topo, rest):
    library, plans = built(tmp_path, topo, "loopback", **rest)
    for plan in plans:
        for accumulate in (False, True) if plan.collective is Collective.REDUCE_SCATTER else (False,):
            compare(plan, library, run_loopback, accumulate=accumulate, num_seeds=3)


@pytest.mark.gpus2
@pytest.mark.parametrize("knobs", [(), ("chunks=4", "n_stg=4"), ("chunks=8", "n_stg=3")])
def test_two_gpus_give_the_references_bits_in_every_run(tmp_path, knobs):
    """Without knobs a sum is a launch; four are one launch, which waits for the peer's copies by itself, and eight are three."""
    library, plans = built(tmp_path, "1x2", "nccl", knobs=knobs)
    for plan in plans:
        for accumulate in (False, True) if plan.collective is Collective.REDUCE_SCATTER else (False,):
            compare(plan, library, run_host, accumulate=accumulate, num_seeds=20, entry="tidec_node_run")


@pytest.mark.slow
def test_without_a_gpu_the_loopback_target_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("TIDEC_CUDA_ARCH", "9.0")
    library, (plan, _) = built(tmp_path, "1x2", "loopback")
    with pytest.raises(TidecError) as caught:
        run_loopback(HostJob(library, plan, make(plan, calls=1)))
    assert caught.value.exit is Exit.ENVIRONMENT and caught.value.diagnostics[0].code == "E006"


@pytest.mark.gpus2
@pytest.mark.parametrize("knobs", [(), ("stripes=2", "chunks=4"), ("n_part=3", "n_out=2")])
def test_two_nodes_of_a_gpu_each_give_the_references_bits_over_their_rail(tmp_path, knobs):
    # Needs NCCL 2.31 in this process's LD_PRELOAD, which the ranks inherit.
    if find_nccl().lacks:
        pytest.skip(f"NCCL {find_nccl().version}: {find_nccl().lacks}")
    library, plans = built(tmp_path, "2x1", "nccl", knobs=knobs)
    for plan in plans:
        for accumulate in (False, True) if plan.collective is Collective.REDUCE_SCATTER else (False,):
            compare(plan, library, run_host, accumulate=accumulate, num_seeds=20, entry="tidec_node_run")
