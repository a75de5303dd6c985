"""Which NCCL a process of this machine loads, where it lies and whether it is new enough.

The name libnccl.so.2 gives the first one of LD_PRELOAD, LD_LIBRARY_PATH and the system's folders; torch brings one of its own, which a process that has
imported torch gets instead. It is loaded in a process of its own, so that nothing of it stays here.
"""
from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import dataclass

# Puts over several RMA contexts came with it.
MIN_NCCL = (2, 31)
_DEADLINE_S = 30.0
_LOOK = """
import ctypes, json
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]
try:
    library = ctypes.CDLL("libnccl.so.2")
    version, info = ctypes.c_int(0), Info()
    failed = library.ncclGetVersion(ctypes.byref(version))
    ctypes.CDLL(None).dladdr(ctypes.cast(library.ncclGetVersion, ctypes.c_void_p), ctypes.byref(info))
    print(json.dumps({"version": 0 if failed else version.value, "path": (info.file or b"").decode(errors="replace"), "why": ""}))
except (OSError, AttributeError) as problem:
    print(json.dumps({"version": 0, "path": "", "why": str(problem)}))
"""


@dataclass(frozen=True, slots=True)
class Nccl:
    """A library. version: as text, "" where there is none that answers.  path: of the file.  lacks: why it cannot carry rails, "" where it can."""

    version: str
    path: str
    lacks: str


def find_nccl() -> Nccl:
    """The NCCL that a process would load here."""
    try:
        done = subprocess.run((sys.executable, "-I", "-S", "-c", _LOOK), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              timeout=_DEADLINE_S, check=False)
        said = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return Nccl("", "", f"loading libnccl.so.2 did not end within {_DEADLINE_S:.0f} s")
    except ValueError:
        return Nccl("", "", f"the process that loaded libnccl.so.2 ended with {done.returncode}")
    if not said["version"]:
        return Nccl("", said["path"], said["why"] or "ncclGetVersion fails")
    version = _numbers(said["version"])
    want = ".".join(map(str, MIN_NCCL))
    return Nccl(".".join(map(str, version)), said["path"], "" if version[:2] >= MIN_NCCL else f"it is older than {want}")


def loaded_nccl() -> tuple[int, int, int]:
    """The version of the NCCL that this process has loaded; zeros where it has none."""
    version = ctypes.c_int(0)
    try:
        failed = ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOW | os.RTLD_NOLOAD).ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return (0, 0, 0)
    return (0, 0, 0) if failed else _numbers(version.value)


def _numbers(code: int) -> tuple[int, int, int]:
    """21903 is 2.19.3; before 2.9 one digit less stood for the minor version. Source: nccl.h, NCCL_VERSION."""
    return (code // 10000, code // 100 % 100, code % 100) if code >= 10000 else (code // 1000, code // 100 % 10, code % 100)
