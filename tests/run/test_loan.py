"""A storage is lent by torch's own call, or in versions without one by a library that does the same; what cannot be built is said."""
from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tidec.build.loan import Torch, build_loan
from tidec.errors import TidecError
from tidec.run.arena import tensor_at
from tidec.run.library import may_build
from tidec.run.loan import Swap, load_swap, swap_by_torch


@pytest.fixture(scope="module")
def by_library(tmp_path_factory: pytest.TempPathFactory) -> Swap:
    return load_swap(tmp_path_factory.mktemp("loan"), may_build=lambda *_: None)


WAYS = ["by_library"] + (["by_torch"] if hasattr(torch.UntypedStorage, "_swap_data_ptr_") else [])


@pytest.mark.parametrize("way", WAYS)
def test_an_empty_storage_borrows_memory_and_gives_it_back(way, by_library):
    swap = by_library if way == "by_library" else swap_by_torch
    memory = torch.arange(12, dtype=torch.float32)
    part = tensor_at(memory.data_ptr() + 16, 6, torch.float32)
    output = torch.empty(6)
    parameter, version = torch.nn.Parameter(torch.as_strided(output, (2, 3), (3, 1), 0)), output._version
    output.untyped_storage().resize_(0)
    x = torch.ones(1, 3, requires_grad=True)
    swap(output.untyped_storage(), part.untyped_storage())
    assert parameter.data_ptr() == memory.data_ptr() + 16 and output.untyped_storage().nbytes() == 24
    y = torch.nn.functional.linear(x, parameter)
    assert y.tolist() == [[15.0, 24.0]] and part.untyped_storage().nbytes() == 0
    with pytest.raises(RuntimeError, match="not resizable"):
        output.untyped_storage().resize_(0)
    swap(output.untyped_storage(), part.untyped_storage())
    assert output.untyped_storage().nbytes() == 0 and part.tolist() == [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    # What autograd has kept of the parameter follows it to the next landing.
    other = torch.full((6,), 2.0)
    swap(output.untyped_storage(), (lent := tensor_at(other.data_ptr(), 6, torch.float32)).untyped_storage())
    y.sum().backward()
    assert x.grad.tolist() == [[4.0, 4.0, 4.0]] and output._version == version
    swap(output.untyped_storage(), lent.untyped_storage())
    output.untyped_storage().resize_(24)
    assert output.untyped_storage().nbytes() == 24


def test_the_library_is_built_once(tmp_path, by_library):
    load_swap(tmp_path, may_build=lambda *_: None)
    (file,) = tmp_path.iterdir()
    stamp = file.stat().st_mtime_ns
    load_swap(tmp_path, may_build=pytest.fail)
    assert file.stat().st_mtime_ns == stamp


def test_what_cannot_be_built_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEC_NO_BUILD", "1")
    with pytest.raises(TidecError, match="E002.*cannot be lent in torch .* without a library of its own, which is not built\n.*TIDEC_NO_BUILD=1"):
        load_swap(tmp_path, may_build=may_build)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(TidecError, match="E002.*no-such-compiler"):
        load_swap(tmp_path, may_build=lambda *_: None)
    monkeypatch.delenv("CXX")
    with pytest.raises(TidecError, match="E002"):
        build_loan(tmp_path, Torch("none", Path("/nowhere"), Path("/nowhere"), True))
    assert not list(tmp_path.iterdir())


def test_a_library_that_swaps_nothing_is_found_out(tmp_path, monkeypatch):
    from tidec.run import loan

    monkeypatch.setattr(loan.ctypes, "CDLL", lambda path: type("Library", (), {"tidec_swap_storages": type("Function", (), {"__call__": lambda self, a, b: None})()})())
    with pytest.raises(TidecError, match="E002.*cannot be used\n.*two storages that it swapped are"):
        load_swap(tmp_path, may_build=lambda *_: None)
