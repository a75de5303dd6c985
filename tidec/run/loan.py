"""How a landing is lent to the storage of a tensor: torch's own call from 2.12 on, before that a small library that is built with its headers."""
from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

import torch

from tidec.build.loan import Torch, build_loan, loan_file
from tidec.errors import Diagnostic, TidecError

# What two storages hold changes places: address, bytes, allocator, whether they can be resized. Views follow, and no version counter moves.
Swap = Callable[[torch.UntypedStorage, torch.UntypedStorage], None]


def swap_by_torch(one: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
    """From 2.12 on."""
    one._swap_data_ptr_(other)


def load_swap(where: Path, *, may_build: Callable[[str, str], None]) -> Swap:
    """The same by the library of this torch, kept in a folder, built if it is not there.

    may_build: raises where nothing may be compiled here; it is given what is missing, and what to do about it.
    Raises E002, E003, and E002 where two storages that it swapped are not swapped.
    """
    root = Path(torch.__file__).parent
    here = Torch(f"{torch.__version__} {torch.version.git_version}", root / "include", root / "lib", bool(torch._C._GLIBCXX_USE_CXX11_ABI))
    file = loan_file(where, here)
    if not file.is_file():
        may_build(f"storages cannot be lent in torch {torch.__version__} without a library of its own, which is not built", "unset TIDEC_NO_BUILD once, or take torch 2.12 or newer")
        file = build_loan(where, here)
    try:
        function = ctypes.CDLL(os.fspath(file)).tidec_swap_storages
    except (OSError, AttributeError) as problem:
        raise _unusable(file, str(problem)) from problem
    function.argtypes, function.restype = [ctypes.c_size_t, ctypes.c_size_t], None

    def swap(one: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
        function(one._cdata, other._cdata)

    wrong = _what_is_wrong(swap)
    if wrong:
        raise _unusable(file, wrong)
    return swap


def _what_is_wrong(swap: Swap) -> str:
    """What of a swap of two small tensors is not as it should be; "" = all is."""
    one, other = torch.arange(3, dtype=torch.float32), torch.arange(5, dtype=torch.float32)
    view, places, version = one[1:2], (one.data_ptr(), other.data_ptr()), one._version
    swap(one.untyped_storage(), other.untyped_storage())
    found = (one.data_ptr(), other.data_ptr(), view.data_ptr(), one.untyped_storage().nbytes(), other.untyped_storage().nbytes(), one._version)
    wanted = (places[1], places[0], places[1] + 4, 20, 12, version)
    swap(one.untyped_storage(), other.untyped_storage())
    back = (one.data_ptr(), other.data_ptr(), one.untyped_storage().nbytes())
    return "" if (found, back) == (wanted, (*places, 12)) else f"two storages that it swapped are {found} and then {back}, not {wanted} and {(*places, 12)}"


def _unusable(file: Path, reason: str) -> TidecError:
    return TidecError(Diagnostic("E002", f"{file.name} cannot be used", reason=reason, help="remove it: it is built again"))
