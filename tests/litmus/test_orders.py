"""What the proofs assume of streams and counters (T3, T4, T5 in tidec/verify/axioms.py), on GPUs: 10,000 rounds, each with a pattern of its own.

And what copies take of multiprocessors: nothing is said of that by the interface.
"""
from __future__ import annotations

from pathlib import Path

import pytest

from tidec.build.cuda import find_tools
from tidec.build.toolchain import run_tool
from tidec.errors import TidecError
from tidec.shipped import folder

ROUNDS, DEADLINE_S = 10_000, 120.0
WAYS = ("one", "batch", "rows", "word")


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled orders.cu, whose head says what it does."""
    try:
        tools = find_tools()
    except TidecError as problem:
        pytest.skip(problem.diagnostics[0].sentence)
    program, runtime = tmp_path_factory.mktemp("litmus") / "orders", folder("runtime")
    sources = (str(Path(__file__).with_name("orders.cu")), str(runtime / "cuda" / "streams.cpp"))
    run_tool((*tools.nvcc.command, "-std=c++17", "-O2", f"-arch={tools.architecture}", f"-I{runtime}", f"-I{runtime / 'include'}", *sources, "-o", str(program)), deadline_s=300)
    return program


def wrong_words(orders: Path, *asked: object) -> int:
    return int(run_tool((str(orders), *map(str, asked)), deadline_s=DEADLINE_S))


@pytest.mark.gpu
@pytest.mark.parametrize("how", WAYS)
def test_who_waits_for_a_flag_sees_all_that_was_copied_before_it(orders, how):
    assert wrong_words(orders, "flag", how, ROUNDS, 1, 0, 0) == 0


@pytest.mark.gpu
def test_without_the_wait_words_of_an_earlier_round_are_seen(orders):
    assert wrong_words(orders, "flag", "one", 200, 0, 0, 0) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("lanes", [2, 8])
def test_a_landing_after_a_meeting_sees_every_lanes_block(orders, lanes):
    assert wrong_words(orders, "meeting", lanes, ROUNDS, 1) == 0


@pytest.mark.gpu
def test_without_the_meeting_blocks_of_an_earlier_round_are_seen(orders):
    assert wrong_words(orders, "meeting", 2, 200, 0) > 0


@pytest.mark.gpus2
@pytest.mark.parametrize("how", WAYS)
def test_who_waits_for_a_flag_of_another_gpu_sees_all_that_was_copied_before_it(orders, how):
    assert wrong_words(orders, "flag", how, ROUNDS, 1, 0, 1) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("how", WAYS)
def test_a_copy_on_one_gpu_waits_for_a_multiprocessor_as_a_kernel_does(orders, how):
    """Neither ends while all are full. Where this fails, copies at home have become free: look again at what an all-gather takes."""
    assert run_tool((str(orders), "full", how, "0", "0"), deadline_s=DEADLINE_S).split() == ["0", "0", "0"]


@pytest.mark.gpus2
@pytest.mark.parametrize("how", WAYS)
def test_a_copy_to_another_gpu_needs_no_multiprocessor(orders, how):
    assert run_tool((str(orders), "full", how, "0", "1"), deadline_s=DEADLINE_S).split() == ["1", "0", "0"]


def test_the_program_compiles_without_a_gpu(monkeypatch, request):
    monkeypatch.setenv("TIDEC_CUDA_ARCH", "9.0")
    assert request.getfixturevalue("orders").is_file()
