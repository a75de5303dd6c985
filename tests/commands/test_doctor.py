"""What tidec doctor says of a machine that is made for the test: stubs on PATH, and variables."""
from __future__ import annotations

import os
import subprocess

import pytest


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """`machine(gpus=2, nvcc="13.0")` is a machine with a compiler, that many GPUs and that toolkit; "" is none."""

    def make(*, gpus: int, nvcc: str):
        tools = tmp_path / "tools"
        (tools / "cuda" / "bin").mkdir(parents=True)
        for name, text in (("c++", "echo stub c++ 1.0"), ("nvidia-smi", "\n".join(["echo 9.0"] * gpus) or "exit 6"),
                           ("cuda/bin/nvcc", f'echo "Cuda compilation tools, release {nvcc}, V{nvcc}.1"' if nvcc else "")):
            if text:
                (tools / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
                (tools / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tools}:/bin")
        monkeypatch.setenv("CXX", str(tools / "c++"))
        monkeypatch.setenv("CUDA_HOME", str(tools / "cuda"))

    return make


def test_a_machine_with_two_gpus_runs_every_target(machine, json_of):
    machine(gpus=2, nvcc="13.0")
    code, said = json_of("doctor")
    assert code == 0 and [t["name"] for t in said["targets"]] == ["python", "echo", "host", "loopback", "nccl"]
    assert all(t["ok"] for t in said["targets"]), said
    assert said["targets"][-1]["found"]["architecture"] == "sm_90" and said["targets"][-1]["found"]["nvcc"] == "nvcc 13.0.1"


@pytest.mark.parametrize(("target", "code"), [("host", 0), ("loopback", 0), ("nccl", 6)])
def test_one_gpu_is_enough_for_virtual_ranks_only(machine, json_of, target, code):
    machine(gpus=1, nvcc="13.0")
    got, said = json_of("doctor", "--target", target)
    (row,) = said["targets"]
    assert got == code and row["ok"] is (code == 0)
    assert [m["what"] for m in row["missing"]] == (["two GPUs"] if code else [])


def test_what_is_missing_is_said_with_what_to_do(machine, told):
    machine(gpus=0, nvcc="12.3")
    text = told("doctor", "--target", "loopback")
    assert text.endswith("exit 6\n") and "nvcc 12.3 is too old" in text and "no GPU says its compute capability" in text and "nvidia-smi lists 0" in text
    assert text.count("  help: ") == 3
    assert told("doctor").endswith("exit 0\n")


def test_a_target_that_is_none_is_usage(json_of):
    assert json_of("doctor", "--target", "tpu")[0] == 2


@pytest.mark.parametrize(("code", "version", "is_new"), [(21903, "2.19.3", False), (23203, "2.32.3", True), (2708, "2.7.8", False)])
def test_the_nccl_that_is_loaded_is_named_with_its_version_and_its_place(machine, json_of, told, tmp_path, monkeypatch, code, version, is_new):
    """NVIDIA/nccl#1784: built with a new NCCL, loaded an older one from a system folder. Here it stands first in the search path."""
    compiler = os.environ.get("CXX") or "g++"
    folder = tmp_path / "system"
    folder.mkdir()
    (folder / "nccl.c").write_text(f"int ncclGetVersion(int* version) {{ *version = {code}; return 0; }}\n", encoding="ascii")
    subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-o", folder / "libnccl.so.2", folder / "nccl.c"], check=True, timeout=60)
    machine(gpus=2, nvcc="13.0")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    assert json_of("doctor")[1]["nccl"] == {"version": version, "path": str(folder / "libnccl.so.2"), "ok": is_new, "reason": "" if is_new else "it is older than 2.31"}
    text = told("doctor", "--target", "nccl")
    assert f"NCCL {version} at <tmp>/system/libnccl.so.2" in text and ("2.31 or later" in text) is not is_new


def test_a_machine_without_nccl_says_so(machine, json_of, monkeypatch):
    machine(gpus=2, nvcc="13.0")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    found = json_of("doctor")[1]["nccl"]
    assert found["ok"] is False and "libnccl.so.2" in found["reason"] and json_of("doctor", "--target", "host")[1].get("nccl") is None


def test_a_library_that_is_no_nccl_is_no_nccl(machine, json_of, tmp_path, monkeypatch):
    (tmp_path / "libnccl.so.2").write_bytes(b"\x7fELF nothing")
    machine(gpus=2, nvcc="13.0")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    found = json_of("doctor")[1]["nccl"]
    assert found["version"] == "" and found["ok"] is False and found["reason"]
