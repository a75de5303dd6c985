"""What tests of examples/measure share: its programs as modules, a bundle that is not proved, and jobs on this machine."""
from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tidec.emit.bundle import write_bundle
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.lower import lower
from tidec.verify.certificate import Proved

ROOT = Path(__file__).resolve().parents[2]
MEASURE = ROOT / "examples" / "measure"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """`program(name)` is a program of examples/measure, as a module."""
    for folder in (MEASURE.parent, MEASURE):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two groups on 1x2 with twelve CTAs for sums, built for the host target. Nothing of it is proved."""
    from tidec.build.library import build_library

    topology, knobs = parse_topology("1x2"), parse_knobs(("ctas_sum=12",), 2, nodes=1)
    asks = [Ask(topology, Group(name, 1, tuple(Parameter(f"p{i}", shape, Dtype.BF16) for i, shape in enumerate(shapes))), Lowering.P2P, knobs)
            for name, shapes in (("block", ((64, 8), (3,), (500, 8))), ("head", ((250, 8),)))]
    bundle = write_bundle([Proved(lower(ask, c), "{}") for ask in asks for c in Collective], asks=asks, out=tmp_path_factory.mktemp("measured") / "bundle").path
    build_library(bundle, "host", flags=())
    return bundle


@pytest.fixture(scope="session")
def tiny_plans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bundle of the tiny model of train_fsdp2.py, proved and built for the host target."""
    folder, usual = tmp_path_factory.mktemp("plans"), {name: value for name, value in os.environ.items() if not name.startswith("TIDEC_")}
    done = subprocess.run([sys.executable, str(MEASURE / "bundles.py"), str(folder), "tiny", "--target", "host"], env={**usual, "TIDEC_CACHE_DIR": str(folder / "cache")}, capture_output=True,
                          text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


@pytest.fixture
def ran(tmp_path: Path, rt_kept: Path) -> Callable[..., str]:
    """`ran(program, *arguments)` runs a program in a cache with tidec_rt, and gives what it printed. as_gpu: its ranks, two, run as if they had GPUs."""
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    shutil.copytree(rt_kept, cache / "rt")

    def run(program: str, *arguments: object, as_gpu: bool = False) -> str:
        usual = {name: value for name, value in os.environ.items() if not name.startswith("TIDEC_")}
        usual |= {"TIDEC_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(MEASURE)}
        command = [sys.executable, str(MEASURE / program), *map(str, arguments)]
        if as_gpu:
            command[1:2] = [str(Path(__file__).parent / "as_gpu.py"), command[1]]
        done = subprocess.run(command, env=usual, cwd=tmp_path, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        return done.stdout

    return run
