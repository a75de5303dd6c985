"""What a job's environment must hold before its first communicator, and what is set for it."""
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidec import cli
from tidec.emit.bundle import read_bundle
from tidec.errors import Level
from tidec.run import library
from tidec.run.environment import settings
from tidec.verify.recheck import recheck

CONNECTIONS = ("CUDA_DEVICE_MAX_CONNECTIONS", "32")
pytestmark = pytest.mark.usefixtures("kept_proofs")


def test_gpus_send_in_the_class_of_the_host():
    found = settings((CONNECTIONS,), {"NCCL_IB_TC": "236"})
    assert found.values == (CONNECTIONS, ("NCCL_GIN_IB_TC", "236")) and not found.notes


def test_without_a_known_class_of_the_host_none_is_set():
    assert settings((CONNECTIONS,), {}).values == (CONNECTIONS,)


def test_the_class_of_the_topology_holds_for_host_and_gpus():
    found = settings((CONNECTIONS, ("NCCL_GIN_IB_TC", "236"), ("NCCL_IB_TC", "236")), {"CUDA_DEVICE_MAX_CONNECTIONS": "32"})
    assert found.values == (("NCCL_GIN_IB_TC", "236"), ("NCCL_IB_TC", "236")) and not found.notes


def test_what_somebody_set_stays_and_is_named():
    found = settings((CONNECTIONS,), {"NCCL_IB_TC": "236", "NCCL_GIN_IB_TC": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    assert not found.values
    assert [(d.level, d.sentence) for d in found.notes] == [
        (Level.WARNING, 'CUDA_DEVICE_MAX_CONNECTIONS is "1", and these plans need 32'), (Level.WARNING, 'NCCL_GIN_IB_TC is "0", and these plans need 236')]
    assert all(d.reason and d.help for d in found.notes)


def test_a_host_that_was_set_otherwise_is_followed_and_named():
    found = settings((("NCCL_GIN_IB_TC", "236"), ("NCCL_IB_TC", "236")), {"NCCL_IB_TC": "106"})
    assert found.values == (("NCCL_GIN_IB_TC", "106"),)
    assert [d.sentence for d in found.notes] == ['NCCL_IB_TC is "106", and these plans need 236']


@pytest.fixture
def bundle(group, tmp_path):
    """A bundle for a topology whose network does not drop class 236."""
    topology = tmp_path / "topology.json"
    topology.write_text(json.dumps({"nodes": 2, "lanes": 1, "nic_traffic_class": 236}))
    file = group('{"params": [{"name": "w", "shape": [6, 4], "dtype": "bf16"}]}')
    assert cli.main(["compile", "--topo", str(topology), "--group", str(file), "--no-echo", "-o", str(tmp_path / "bundle")]) == 0
    return tmp_path / "bundle"


def test_a_bundle_carries_the_class_of_its_topology(bundle):
    assert read_bundle(bundle).environment == (CONNECTIONS, ("NCCL_GIN_IB_TC", "236"), ("NCCL_IB_TC", "236"))
    recheck(bundle)


def test_opening_a_bundle_for_gpus_sets_what_it_needs(bundle, monkeypatch):
    monkeypatch.setattr(library, "kept_library", lambda path, target: Path(path) / "lib.so")
    monkeypatch.setattr(library, "_programs", lambda file, bundle: (0, 1))
    for name in ("NCCL_IB_TC", "NCCL_GIN_IB_TC"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv(*CONNECTIONS)
    library.open_bundle(bundle, "host")
    assert not library.os.environ["NCCL_GIN_IB_TC"]
    opened = library.open_bundle(bundle, "nccl")
    assert library.os.environ["NCCL_GIN_IB_TC"] == library.os.environ["NCCL_IB_TC"] == "236" and not opened.notes
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    assert [d.code for d in library.open_bundle(bundle, "nccl").notes] == ["E007"]


def test_install_tells_what_is_not_as_the_plans_need_it(monkeypatch, capsys):
    pytest.importorskip("torch")
    from tidec.run import fsdp, team

    (note,) = settings((CONNECTIONS,), {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}).notes
    opened = SimpleNamespace(bundle=SimpleNamespace(plans=()), notes=(note,))
    monkeypatch.setattr(fsdp, "open_bundle", lambda path, target, has_begun: opened)
    monkeypatch.setattr(fsdp, "load_rt", lambda folder: None)
    monkeypatch.setattr(fsdp, "libraries", lambda opened, rt, swap: None)
    monkeypatch.setattr(team.dist, "get_rank", lambda: 0)
    peers = SimpleNamespace(rank=0, size=1, names=("0",), first=lambda told: told, first_trouble=lambda trouble: None)
    asking = SimpleNamespace(plans=Path("bundle"), target="nccl", rt_folder=lambda: None)
    assert fsdp._open(peers, [], asking)[0] is opened
    assert "E007" in (told := capsys.readouterr().err) and "CUDA_DEVICE_MAX_CONNECTIONS" in told


def test_what_comes_too_late_is_told():
    """A process reads how many queues its GPU shall have when it first uses it."""
    needed = (CONNECTIONS,)
    (note,) = settings(needed, {}, has_begun=True).notes
    assert note.code == "E007" and "was not set when this process began to use its GPU" in note.sentence and note.help == "start the job with CUDA_DEVICE_MAX_CONNECTIONS=32"
    assert settings(needed, {}).notes == settings(needed, {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}, has_begun=True).notes == ()
