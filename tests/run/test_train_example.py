"""examples/train_fsdp2.py with its one line more trains the parameters that it trains without, bit for bit where gradients are rounded.

TRAIN_PLANS=BUNDLE gives plans, where they cannot be compiled.
"""
from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tidec.build.cuda import find_tools
from tidec.errors import TidecError

ROOT = Path(__file__).resolve().parents[2]


def trained(folder: Path, name: str, kept_plans: Path, *options: str) -> list[dict]:
    """What every one of two ranks has of a run of six steps."""
    usual = {key: value for key, value in os.environ.items() if not key.startswith("TIDEC_") or key == "TIDEC_CUDA_ARCH"}
    usual.update(PYTHONPATH=str(ROOT), TIDEC_CACHE_DIR=str(kept_plans), CUDA_DEVICE_MAX_CONNECTIONS="32", OMP_NUM_THREADS="1", CUBLAS_WORKSPACE_CONFIG=":4096:8")
    command = [sys.executable, str(ROOT / "examples/train_fsdp2.py"), "--ranks", "2", "--steps", "6", "--round-gradients", "--digest", "--deadline", "60",
               "--json", str(folder / f"{name}.json"), *options]
    ran = subprocess.run(command, env=usual, cwd=folder, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, f"{name}: exit code {ran.returncode}\n{ran.stdout[-2000:]}\n{ran.stderr[-3000:]}"
    return json.loads((folder / f"{name}.json").read_text())["ranks"]


def check_modes(folder: Path, kept_plans: Path, *options: str) -> None:
    given = ("--plans", os.environ["TRAIN_PLANS"]) if "TRAIN_PLANS" in os.environ else ()
    stock = trained(folder, "stock", kept_plans, *options)
    assert len({rank["digest"] for rank in stock}) == len(stock) == 2
    for mode in ("in_place", "slot_reuse"):
        ours = trained(folder, mode, kept_plans, *options, "--tidec", "--require", "--mode", mode, *given)
        for rank, (one, other) in enumerate(zip(stock, ours, strict=True)):
            assert (other["losses"], other["digest"]) == (one["losses"], one["digest"]), f"{mode}: rank {rank}"
            assert other["is_as_planned"] and other["stock_calls"] == {} and other["by_plan"] > 0, f"{mode}: rank {rank}"


@pytest.mark.slow
def test_both_modes_train_stocks_parameters(tmp_path, kept_plans):
    check_modes(tmp_path, kept_plans, "--device", "cpu", "--size", "tiny")


@pytest.mark.gpus2
def test_both_modes_train_stocks_parameters_on_two_gpus(tmp_path, kept_plans):
    if torch.cuda.device_count() < 2:
        pytest.skip("torch sees fewer than two GPUs")
    if "TRAIN_PLANS" not in os.environ:
        if importlib.util.find_spec("z3") is None:
            pytest.skip("without z3 plans cannot be compiled, and TRAIN_PLANS gives none")
        try:
            find_tools()
        except TidecError as problem:
            pytest.skip(problem.diagnostics[0].sentence)
    check_modes(tmp_path, kept_plans, "--device", "cuda", "--size", "small", "--tokens", "1024")
