"""Bundles that are really proved, made once a run, and copies of them to spoil."""
from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tidec import pipeline
from tidec.inputs.ask import Mode
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import NOTHING_SET, parse_knobs
from tidec.inputs.signature import read_groups
from tidec.inputs.topology import parse_topology

# Two groups: rows that no rank count divides, and a cast with a frozen parameter.
GROUPS = """{"groups": [
    {"name": "block", "params": [{"name": "w", "shape": [7, 3], "dtype": "bf16"}, {"name": "b", "shape": [33], "dtype": "bf16"}]},
    {"name": "head", "repeat": 2, "param_dtype": "bf16", "params": [
        {"name": "h", "shape": [5, 2], "dtype": "fp32"}, {"name": "f", "shape": [3], "dtype": "fp32", "requires_grad": false}]}]}"""


class Kept(dict):
    """Proofs of this run, by class."""

    def get(self, key: str) -> str:
        return super().get(key, "")

    def put(self, key: str, value: str) -> None:
        self[key] = value


@pytest.fixture(scope="session")
def proofs() -> Kept:
    """Proofs that other tests of this run found."""
    return Kept()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, proofs: Kept) -> Callable[..., Path]:
    """`made("3x2", "W=1")` is the bundle of GROUPS, or of `groups=` text; it is shared, so it is never changed.

    Knobs that are not set are at their defaults, or chosen for each group where `is_solved`.
    """
    known: dict[tuple, Path] = {}

    def make(topo: str, *settings: str, lowering: Lowering = Lowering.P2P, mode: Mode = Mode.IN_PLACE, groups: str = GROUPS, is_solved: bool = False) -> Path:
        key = (topo, settings, lowering, mode, groups, is_solved)
        if key not in known:
            topology = parse_topology(topo)
            knobs = NOTHING_SET if is_solved else parse_knobs(settings, topology.lanes, nodes=topology.nodes)
            known[key] = pipeline.compile(
                topology, read_groups(groups, file="small.json"), knobs=knobs, lowering=lowering, mode=mode,
                out=tmp_path_factory.mktemp("bundles") / "b", store=proofs, is_echoed=False).bundle.path
        return known[key]

    return make


@pytest.fixture
def spoilt(made: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """`spoilt("3x2")` is a copy of a bundle, to be changed."""

    def copy(*args: str, **rest: object) -> Path:
        return Path(shutil.copytree(made(*args, **rest), tmp_path / f"copy{len(list(tmp_path.iterdir()))}"))

    return copy
