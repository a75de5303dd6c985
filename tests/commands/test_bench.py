"""`tidec bench`: what it tells, what it refuses, and that it measures."""
from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidec.commands import bench as command
from tidec.emit.bundle import write_bundle
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.lower import lower
from tidec.run.bench import Bench, BenchJob, Machine, Row, Side
from tidec.run.compare import Difference
from tidec.verify.certificate import Proved

torch = pytest.importorskip("torch")
HOST = Machine((), 2, "2.13.0", "", "", 10.0)
PAIR = Machine(("NVIDIA H200", "NVIDIA H200"), 32, "2.11.0", "13.0", "2.28.9", 390.0)


def stable(text: str) -> str:
    """Without the bundle's digest, which every change of a schedule changes."""
    return re.sub(r", bundle [0-9a-f]{12},", ", bundle <digest12>,", text)


@pytest.fixture
def bundle(tmp_path) -> Path:
    """Two groups on 1x2, one of which keeps both stock collectives. Nothing of it is proved or built."""
    topology = parse_topology("1x2")
    knobs = parse_knobs(("ctas_sum=12",), 2, nodes=1)
    asks = [Ask(topology, Group(name, 1, (Parameter("w", (500, 8), Dtype.BF16, shard_dim=dim), Parameter("b", (3,), Dtype.BF16))), Lowering.P2P, knobs) for name, dim in (("block", 0), ("kept", 1))]
    return write_bundle([Proved(lower(asks[0], c), "{}") for c in Collective], asks=asks, out=tmp_path / "bundle").path


@pytest.fixture
def measured(monkeypatch):
    """`measured(machine, ...)` has every job give made numbers: 20 us for a plan, 50 for stock; gives the jobs. differs: of the second row."""

    def made(machine: Machine, *, differs: Difference | None = None) -> list[BenchJob]:
        jobs: list[BenchJob] = []

        def run(job: BenchJob, watch) -> Bench:
            jobs.append(job)
            plans, host = {p.digest: p for p in job.plans}, ((4e-6,) * job.rounds if machine.gpus else ())
            rows = [Row(m, plans[m.plan].collective.value, "bf16", 16_008, 2, Side((2e-5,) * job.rounds, host), Side((5e-5,) * job.rounds, host), "stock", None) for m in job.measures]
            if differs:
                rows[1] = replace(rows[1], difference=differs)
            watch(Bench(machine, tuple(rows)))
            return Bench(machine, tuple(rows))

        monkeypatch.setattr(command, "run_bench", run)
        monkeypatch.setattr(command, "library_of", lambda path, target, cache: path / target)
        monkeypatch.setattr(command, "build_rt", lambda where: where)
        monkeypatch.setattr(command, "count_gpus", lambda: len(machine.gpus))
        monkeypatch.setattr(command, "find_driver", lambda: "580.159")
        monkeypatch.setattr(command.platform, "machine", lambda: "x86_64")
        return jobs

    return made


def test_a_line_a_measurement_on_gpus(bundle, measured, told, golden):
    jobs = measured(PAIR)
    golden("cli/bench-nccl.txt", stable(told("bench", bundle, "--target", "nccl", "--ctas", "8,16")))
    assert [m.ctas for m in jobs[0].measures] == [0, 8, 16] and jobs[0].environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"


def test_ranks_on_gpus_get_the_environment_that_the_plans_need(bundle, measured, told, monkeypatch):
    jobs = measured(PAIR)
    monkeypatch.setenv("NCCL_IB_TC", "236")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    text = told("bench", bundle, "--target", "nccl")
    assert jobs[0].environment["NCCL_GIN_IB_TC"] == "236" and jobs[0].environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1", "what somebody set stays"
    assert text.count("warning[E007") == 1 and 'CUDA_DEVICE_MAX_CONNECTIONS is "1", and these plans need 32' in text and text.endswith("exit 0\n")


def test_bits_that_differ_are_an_error_with_their_place(bundle, measured, told, json_of, golden):
    measured(HOST, differs=Difference(0, 1, "w", 499, 7, "0x3f800001", "0x3f800000"))
    golden("cli/bench-differs.txt", stable(told("bench", bundle)))
    code, said = json_of("bench", bundle)
    assert code == 1 and [r["bitwise_equal"] for r in said["rows"]] == [True, False] and said["rows"][1]["first_difference"]["row"] == 499


def test_json_has_every_round_and_goes_to_a_file_too(bundle, measured, json_of, tmp_path):
    jobs = measured(PAIR)
    code, said = json_of("bench", bundle, "--target", "nccl", "--rounds", 3, "--calls", 7, "--collective", "reduce-scatter", "-o", tmp_path / "out.json")
    assert code == 0 and said["schema"] == "tidec.bench/1" and (jobs[0].calls, jobs[0].rounds) == (7, 3)
    (row,) = said["rows"]
    assert row["collective"] == "reduce_scatter" and row["target"] == "nccl" and row["ctas"] == 12, "as the bundle says"
    assert row["rounds"]["plan"] == {"us": [20.0] * 3, "host_us": [4.0] * 3} and row["us"] == 20.0 and row["stock_us"] == 50.0 and row["ratio"] == 2.5
    assert row["algbw_gbps"] == pytest.approx(0.8004) and row["busbw_gbps"] == pytest.approx(0.4002)
    assert said["machine"]["gpus"] == ["NVIDIA H200"] * 2 and said["machine"]["driver"] == "580.159" and said["stock"][0]["group"] == "kept"
    assert json.loads((tmp_path / "out.json").read_text())["rows"] == said["rows"]
    assert json_of("bench", bundle, "--target", "nccl", "-o", tmp_path / "out.json")[1]["error"]["code"] == "C002"
    assert json_of("bench", bundle, "--target", "nccl", "-o", tmp_path / "out.json", "--force")[0] == 0


REFUSED = {
    "target": ("P001", ["--target", "python"]), "no such target": ("P001", ["--target", "tpu"]), "collective": ("P001", ["--collective", "all_reduce"]),
    "group": ("P001", ["--groups", "blocks"]), "stock": ("P001", ["--groups", "kept"]), "calls": ("P001", ["--calls", "0"]), "rounds": ("P001", ["--rounds", "x"]),
    "ctas": ("P001", ["--target", "nccl", "--ctas", "8,"]), "ctas of the host": ("P001", ["--ctas", "8"]), "deadline": ("P001", ["--deadline", "0"]),
    "no folder": ("E003", ["-o", "/nowhere/at/all.json"]), "no GPUs": ("E006", ["--target", "nccl"]), "inputs too": ("P001", ["--equal", "3:24"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_measured_is_said_at_once(name, bundle, measured, json_of):
    code, arguments = REFUSED[name]
    jobs = measured(HOST)
    got, said = json_of("bench", bundle, *arguments)
    assert said["error"]["code"] == code and got == said["exit"] == (2 if code == "P001" else 6) and said["error"]["help"] and not jobs


def test_gpus_that_are_not_there_are_missed_before_anything_is_compiled(measured, json_of, monkeypatch):
    measured(HOST)
    monkeypatch.setattr(command, "bundle_of", lambda **asked: pytest.fail("it was compiled"))
    code, said = json_of("bench", "--topo", "1x2", "--target", "nccl", "--equal", "3:24")
    assert code == 6 and said["error"]["code"] == "E006" and said["error"]["sentence"] == "2 ranks need 2 GPUs, and nvidia-smi lists 0"


def test_without_inputs_there_is_nothing_to_measure(json_of, told):
    assert "give a bundle's folder, or --topo and --group, --equal or --unequal" in told("bench", "--topo", "1x2")
    assert json_of("bench", "--topo", "1x2", "--equal", "3:1")[1]["error"]["code"] == "P001"


def test_without_torch_it_says_how_to_get_it(bundle, json_of, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, said = json_of("bench", bundle)
    assert code == 6 and said["error"]["code"] == "E001" and "tidec[fsdp]" in said["error"]["help"]


def test_the_plans_of_a_bundle_are_measured_on_this_machine(bundle, json_of, rt_kept, tmp_path):
    shutil.copytree(rt_kept, tmp_path / "cache" / "rt")
    (tmp_path / "cache").chmod(0o700)
    code, said = json_of("bench", bundle, "--rounds", 2, "--calls", 3)
    assert code == 0 and said["beside"] == "gloo" and [r["collective"] for r in said["rows"]] == ["all_gather", "reduce_scatter"]
    for row in said["rows"]:
        assert row["bitwise_equal"] and row["group"] == "block" and row["size_bytes"] == 2 * 2 * (250 * 8 + 2) and row["ctas"] is None and row["host_us"] is None
        assert len(row["rounds"]["plan"]["us"]) == 2 and row["us"] > 0 < row["stock_us"]


@pytest.mark.slow
@pytest.mark.usefixtures("kept_proofs")
def test_made_up_groups_are_compiled_and_measured(json_of):
    code, said = json_of("bench", "--topo", "1x2", "--equal", "3:1KiB", "--unequal", "3:1KiB", "--groups", "unequal3-1KiB")
    assert code == 0 and [(r["group"], r["size_bytes"], r["bitwise_equal"]) for r in said["rows"]] == [("unequal3-1KiB", 2 * 1020, True)] * 2
