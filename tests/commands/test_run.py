"""`tidec run`: what it tells, what it refuses, and what it sees."""
from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tidec.commands import run as command
from tidec.emit.bundle import write_bundle
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.interpret.bits import carry_out
from tidec.plan.lower import lower
from tidec.run import room
from tidec.run.compare import Difference
from tidec.run.host import HostRun
from tidec.verify.certificate import Proved

SMALL = """{"groups": [
    {"name": "block", "repeat": 2, "params": [{"name": "w", "shape": [7, 3], "dtype": "bf16"}, {"name": "b", "shape": [33], "dtype": "bf16"}]},
    {"name": "again", "params": [{"name": "w", "shape": [7, 3], "dtype": "bf16"}, {"name": "b", "shape": [33], "dtype": "bf16"}]},
    {"name": "kept", "params": [{"name": "e", "shape": [4, 6], "dtype": "bf16", "shard_dim": 1}]}]}"""
GATHER, REDUCE = "all_gather", "reduce_scatter"

pytestmark = pytest.mark.usefixtures("kept_proofs")


def test_both_collectives_of_every_group_are_run_and_told(json_of, group):
    code, told = json_of("run", "--topo", "2x2", "--group", group(SMALL), "--target", "python", "--calls", 5, "--poison", "--seeds", 2)
    assert code == 0 and told["schema"] == "tidec.run/1" and told["target"] == "python"
    block, again, kept = told["groups"]
    assert (block["name"], block["repeat"], kept["name"]) == ("block", 2, "kept")
    for collective in (GATHER, REDUCE):
        one = block[collective]
        assert set(one) == {"bitwise_equal", "digest", "max_error_ulps", "calls"} and one["bitwise_equal"] is True and one["calls"] == 5 and len(one["digest"]) == 64
        assert again[collective] == one and kept[collective]["stock"]["code"] == "P012"
    assert block[GATHER]["max_error_ulps"] == 0.0 < block[REDUCE]["max_error_ulps"] < 2


def test_a_bundle_runs_on_the_host_and_gives_the_digests_of_the_reference(json_of, group, tmp_path, monkeypatch):
    jobs, real = [], command.run_host
    monkeypatch.setattr(command, "run_host", lambda job: jobs.append(job) or real(job))
    options = ("--calls", 4, "--accumulate", "--poison", "--alpha", "0.3")
    code, compiled = json_of("compile", "--topo", "2x2", "--group", group(SMALL), "--target", "host", "--stock-ok", "--set", "ctas_sum=5", "-o", tmp_path / "bundle")
    assert code == 0 and (tmp_path / "bundle" / "lib").is_dir()
    code, host = json_of("run", tmp_path / "bundle", "--target", "host", "--seeds", 4, *options)
    assert code == 0 and host["bundle_digest"] == compiled["bundle_digest"]
    assert jobs and all((job.sum_ctas, job.land_ctas) == (5, 4) for job in jobs), "what was set, and what the solver chose"
    code, python = json_of("run", tmp_path / "bundle", "--target", "python", *options)
    assert code == 0
    for a, b in zip(host["groups"], python["groups"], strict=True):
        assert a[GATHER] == b[GATHER] and a[REDUCE] == b[REDUCE]


@pytest.mark.slow
def test_what_was_built_is_found_again_in_the_cache(json_of, group, own_environment, monkeypatch):
    asked = ("run", "--topo", "2x1", "--group", group(SMALL), "--target", "host")
    code, first = json_of(*asked)
    assert code == 0
    built = []
    monkeypatch.setattr("tidec.build.library._compile", lambda *_: built.append(1))
    code, again = json_of(*asked)
    assert code == 0 and not built and again["groups"] == first["groups"] and again["bundle"] == first["bundle"]


@pytest.mark.parametrize("data", ["integers", "classes"])
def test_other_data_give_other_digests(data, json_of, group):
    asked = ("run", "--topo", "1x2", "--group", group(SMALL), "--target", "python", "--data")
    (_, numbers), (code, other) = json_of(*asked, "numbers"), json_of(*asked, data)
    assert code == 0 and numbers["groups"][0][REDUCE]["digest"] != other["groups"][0][REDUCE]["digest"]
    assert other["groups"][0][REDUCE]["bitwise_equal"] and (data != "integers" or other["groups"][0][REDUCE]["max_error_ulps"] == 0.0)


def test_bits_that_differ_are_an_error_with_their_place(json_of, told, group, monkeypatch):
    monkeypatch.setattr(command, "first_difference", lambda plan, got, wanted: Difference(1, 3, "w", 4, 2, "0x3f800001", "0x3f800000"))
    asked = ("run", "--topo", "2x2", "--group", group(SMALL), "--target", "python")
    code, said = json_of(*asked)
    assert code == 1 and said["groups"][0][REDUCE]["bitwise_equal"] is False
    assert said["groups"][0][REDUCE]["first_difference"] == {"call": 1, "rank": 3, "parameter": "w", "row": 4, "column": 2, "got": "0x3f800001", "wanted": "0x3f800000"}
    text = told(*asked)
    assert "error[R002 unequal-bits]" in text and 'call 1, rank 1.1, parameter "w", row 4, column 2: 0x3f800001, not 0x3f800000' in text and "DIFFERS" in text


REFUSED = {
    "a target that runs nothing": (2, ["--target", "echo"]), "no such target": (2, ["--target", "tpu"]),
    "no calls": (2, ["--calls", "0"]), "data": (2, ["--data", "words"]), "alpha": (2, ["--alpha", "nan"]), "a deadline": (2, ["--deadline", "0"]),
    "seeds": (2, ["--seeds", "-1"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_is_said_at_once(name, json_of, group):
    code, arguments = REFUSED[name]
    assert json_of("run", "--topo", "2x2", "--group", group(SMALL), *arguments)[0] == code


def test_a_bundle_and_inputs_to_compile_are_one_too_many(json_of, group, tmp_path):
    assert json_of("run", tmp_path, "--topo", "2x2", "--group", group(SMALL))[0] == 2
    assert json_of("run")[0] == 2 and json_of("run", tmp_path)[0] == 2


def test_without_numpy_it_says_how_to_get_it(group, tmp_path):
    script = "import sys; sys.modules['numpy'] = None; from tidec import cli; sys.exit(cli.main(sys.argv[1:]))"
    done = subprocess.run((sys.executable, "-c", script, "run", "--topo", "2x2", "--group", str(group(SMALL)), "--json"), capture_output=True, text=True, check=False)
    assert done.returncode == 6 and "tidec[run]" in json.loads(done.stdout)["error"]["help"]


def test_a_bundle_is_run_without_the_prover(tmp_path):
    """A machine that has only the bundle has neither z3 nor networkx."""
    ask = Ask(parse_topology("1x2"), Group("g", 1, (Parameter("w", (7, 3), Dtype.BF16),)), Lowering.P2P, parse_knobs((), 2, nodes=1))
    bundle = write_bundle([Proved(lower(ask, c), "{}") for c in Collective], asks=[ask], out=tmp_path / "bundle").path
    script = "import sys; sys.modules.update(z3=None, networkx=None); from tidec import cli; sys.exit(cli.main(sys.argv[1:]))"
    done = subprocess.run((sys.executable, "-c", script, "run", bundle, "--target", "python", "--json"), capture_output=True, text=True, check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["groups"][0][REDUCE]["bitwise_equal"], done.stderr


@pytest.fixture
def lossless(tmp_path):
    """A bundle for two nodes whose network does not drop class 236. Nothing of it is proved or built."""
    (tmp_path / "topology.json").write_text(json.dumps({"nodes": 2, "lanes": 1, "nic_traffic_class": 236}))
    ask = Ask(parse_topology(str(tmp_path / "topology.json")), Group("g", 1, (Parameter("w", (7, 3), Dtype.BF16),)), Lowering.P2P, parse_knobs((), 1, nodes=2))
    return write_bundle([Proved(lower(ask, c), "{}") for c in Collective], asks=[ask], out=tmp_path / "bundle").path


@pytest.fixture
def jobs(monkeypatch):
    """The jobs that are run, with the settings of this process; each gives what the reference gives."""
    found = []

    def run(job):
        found.append((job.environment, {name: os.environ.get(name) for name in SET}))
        return HostRun(carry_out(job.plan, job.given, alpha=job.alpha), (0,) * job.num_seeds, (1.0,) * job.num_seeds)

    monkeypatch.setattr(command, "run_host", run)
    monkeypatch.setattr(command, "run_loopback", run)
    monkeypatch.setattr(command, "library_of", lambda path, target, cache: path / target)
    for name in SET:
        monkeypatch.setenv(name, "")
    return found


SET = {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "NCCL_IB_TC": "236", "NCCL_GIN_IB_TC": "236"}


def test_processes_on_gpus_get_the_environment_that_the_plans_need(lossless, jobs, json_of, told, monkeypatch):
    assert json_of("run", lossless, "--target", "nccl")[0] == 0
    for environment, here in jobs:
        assert {name: environment[name] for name in SET} == SET and environment["PATH"] == os.environ["PATH"] and set(here.values()) == {""}
    monkeypatch.setenv("NCCL_IB_TC", "106")
    text = told("run", lossless, "--target", "nccl")
    assert jobs[-1][0]["NCCL_GIN_IB_TC"] == jobs[-1][0]["NCCL_IB_TC"] == "106", "what somebody set stays, and GPUs follow it"
    assert text.count("warning[E007") == 1 and 'NCCL_IB_TC is "106", and these plans need 236' in text and text.endswith("exit 0\n")


def test_where_all_ranks_share_a_gpu_it_is_set_here_and_on_the_host_not_at_all(lossless, jobs, json_of):
    assert json_of("run", lossless, "--target", "host")[0] == 0
    assert jobs and {(environment, *here.values()) for environment, here in jobs} == {(None, "", "", "")}
    jobs.clear()
    assert json_of("run", lossless, "--target", "loopback")[0] == 0
    assert jobs and all(environment is None and here == SET for environment, here in jobs)


def test_both_modes_give_one_digest(json_of, group):
    """At 5 nodes with k = 1 the outbox of slot reuse is partial: other plans, the same sums in the same order."""
    asked = ("run", "--topo", "5x1", "--group", group(SMALL), "--target", "python", "--calls", 2, "--set", "k=1")
    (code, in_place), (again, reused) = json_of(*asked), json_of(*asked, "--mode", "slot_reuse")
    assert code == again == 0 and in_place["bundle_digest"] != reused["bundle_digest"]
    assert in_place["groups"] == reused["groups"]


def test_a_bundle_has_its_mode(told, tmp_path):
    text = told("run", tmp_path, "--mode", "in_place")
    assert "a bundle is given, and inputs to compile too" in text and text.endswith("exit 2\n")


@pytest.mark.parametrize("target", ["python", "host"])
def test_a_job_beyond_the_memory_of_the_machine_is_refused_before_its_data_are_made(target, told, group, monkeypatch):
    monkeypatch.setattr(room, "available_bytes", lambda: 50_000)
    monkeypatch.setattr(command, "make", lambda *args, **options: pytest.fail("data were made"))
    monkeypatch.setattr(command, "library_of", lambda *args: "no library")
    text = told("run", "--topo", "1x2", "--group", group(SMALL), "--target", target, "--calls", 200)
    assert "error[E008 no-memory]: 200 calls of the all-gather of block on 2 ranks do not fit into this machine\n  reason: it takes up to " in text, text
    assert "and 48.8 KiB are available" in text and "help: run a smaller topology (--topo)" in text and text.endswith("exit 6\n")


def test_memory_that_is_short_on_the_way_is_told(told, group, monkeypatch):
    def make(*args, **options):
        raise MemoryError("Unable to allocate 9 GiB")

    monkeypatch.setattr(command, "make", make)
    text = told("run", "--topo", "1x2", "--group", group(SMALL), "--target", "python")
    assert "E008 no-memory" in text and "short on the way: Unable to allocate 9 GiB\n" in text and text.endswith("exit 6\n")


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_a_job_takes_grows_with_its_calls_by_what_they_hold(is_shared):
    """One parameter of 5 x 3 bf16 on 2 ranks: a shard of 18 bytes, a landing of 36; a gradient of 30, a packed row of 9 fp32."""
    ask = Ask(parse_topology("1x2"), Group("g", 1, (Parameter("w", (5, 3), Dtype.BF16),)), Lowering.P2P, parse_knobs((), 2, nodes=1))
    for collective, given, out in ((Collective.ALL_GATHER, 18, 36), (Collective.REDUCE_SCATTER, 30, 36)):
        plan = lower(ask, collective)
        one, two = (room.job_bytes(plan, calls=calls, is_shared=is_shared) for calls in (1, 2))
        assert two - one == 2 * (2 * given + 5 * out if is_shared else given + 3 * out)
        assert one - (two - one) == 2 * plan.arena.bytes


def test_this_machine_says_what_it_has():
    assert room.available_bytes() > 2**20
