#!/usr/bin/env python3
"""Compiles the bundles that measurements on two GPUs take, with their libraries, on a machine that has z3 and nvcc, for one that has not.

    TIDEC_CUDA_ARCH=9.0 python examples/measure/bundles.py FOLDER [NAMES] [--target nccl]

NAMES, of which all are made where none is given: pair (both collectives of 30 parameters, equal and not, and of a block of Llama-3.1-8B), staged3 and staged6 (those of
8 MiB, and of 128 MiB and the block, with 3 and 6 chunks and as many slots), sweep (P = 1, 9, 16, 30, 256 by
1 to 256 MiB of a rank's shard), rails (2x1), and for examples/train_fsdp2.py small, 1b, 3b, by size. FOLDER/NAME is the bundle. One that is there, from these sources, stays.
"""
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import tidec  # noqa: E402
from tidec.build.library import build_library, kept_library  # noqa: E402
from tidec.emit.bundle import read_bundle  # noqa: E402
from tidec.inputs.signature import Signature, load_groups  # noqa: E402
from tidec.inputs.synthetic import equal_groups, unequal_groups  # noqa: E402

# Of fifty plans on one slow core.
_BUILD_S = 1800.0
PARAMS, SIZES = (30, 1, 256, 9, 16), ("1MiB", "8MiB", "32MiB", "128MiB", "256MiB")


def pair() -> Signature:
    (block,) = (g for g in load_groups(ROOT / "examples" / "llama8b.json").groups if g.name == "block")
    return Signature((*equal_groups("30:32MiB,30:8MiB,30:128MiB", ranks=2), *unequal_groups("30:8MiB,30:32MiB", ranks=2), block), "pair")


def sweep() -> Signature:
    return Signature(equal_groups(",".join(f"{p}:{size}" for p in PARAMS for size in SIZES), ranks=2), "sweep")


def rails() -> Signature:
    return Signature(equal_groups("30:8MiB,30:32MiB", ranks=2), "rails")


def trained(size: str) -> Callable[[], Signature]:
    """The groups of a model of train_fsdp2.py, as tidec.install asks for them, on two ranks of which this process stands for one. The model takes no memory."""

    def read() -> Signature:
        import torch
        import torch.distributed as dist
        import train_fsdp2
        from tidec.run.capture import signature_of
        from torch.testing._internal.distributed.fake_pg import FakeStore

        if not dist.is_initialized():
            dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
        with torch.device("meta"):
            model = train_fsdp2.Llama(train_fsdp2.SIZES[size])
        return signature_of(train_fsdp2.under_fsdp2(model, train_fsdp2.arguments().parse_args([]), "cpu", 2))

    return read


def staged(sizes: str, *, has_block: bool) -> Callable[[], Signature]:
    return lambda: Signature((*equal_groups(sizes, ranks=2), *(pair().groups[-1:] if has_block else ())), "staged")


# The topology, the groups and the knobs that are set.
BUNDLES: dict[str, tuple] = {
    "pair": ("1x2", pair), "staged3": ("1x2", staged("30:8MiB", has_block=False), {"chunks": 3, "n_stg": 3}), "staged6": ("1x2", staged("30:128MiB", has_block=True), {"chunks": 6, "n_stg": 6}),
     "small": ("1x2", trained("small")), "1b": ("1x2", trained("1b")), "3b": ("1x2", trained("3b")), "rails": ("2x1", rails), "sweep": ("1x2", sweep),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=[], help=f"of {', '.join(BUNDLES)}; tiny too")
    parser.add_argument("--target", default="nccl")
    options = parser.parse_args()
    known = BUNDLES | {"tiny": ("1x2", trained("tiny"))}
    for name in options.names or BUNDLES:
        path, begin = options.folder / name, time.monotonic()
        if not path.is_dir() or kept_library(path, options.target) is None:
            topo, made, *knobs = known[name]
            tidec.compile(topo, made(), out=path, knobs=knobs[0] if knobs else {}, is_forced=True)
            build_library(path, options.target, deadline_s=_BUILD_S)
        size = sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
        print(f"{path}: {len(read_bundle(path).plans)} plans, {size / 2**20:.1f} MiB, {time.monotonic() - begin:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
