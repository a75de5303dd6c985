"""Rails of the nccl target: flags as NCCL's signals, one by one; and whole jobs, bit for bit, on a GPU and an NCCL that are none (fakes/)."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidec.build.toolchain import find_compiler, find_nvcc, run_tool
from tidec.emit.bundle import write_bundle
from tidec.errors import TidecError
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.lower import lower
from tidec.shipped import folder
from tidec.verify.certificate import Proved

ROOT, FAKES = Path(__file__).resolve().parents[2], Path(__file__).parent / "fakes"
# Rows and columns that no vector divides, a parameter that most ranks have nothing of, and one of several tiles.
SHAPES = ((37, 24), (33,), (16, 65), (1,), (257, 129), (9, 7))


def bundle_of(folder: Path, topo: str, *knobs: str, dtype: Dtype = Dtype.BF16, delivered: Dtype | None = None, shapes: Sequence[tuple[int, ...]] = SHAPES) -> Path:
    """A bundle of both collectives. They are proved in tests/verify."""
    topology = parse_topology(topo)
    group = Group("g", 1, tuple(Parameter(f"p{i}", shape, dtype) for i, shape in enumerate(shapes)), param_dtype=delivered)
    ask = Ask(topology, group, Lowering.P2P, parse_knobs(knobs, topology.lanes, nodes=topology.nodes))
    return write_bundle(tuple(Proved(lower(ask, c), '{"schema":"tidec.certificate/1"}') for c in Collective), asks=[ask], out=folder / "bundle").path


# ---- flags as signals


@dataclass(frozen=True, slots=True)
class Line:
    """A raise or a wait: of which rank and call, of which counter, over which wire, up to which level, and how many signals that is."""

    kind: str
    rank: int
    call: int
    owner: int
    raiser: int
    context: int
    index: int
    value: int
    count: int

    @property
    def wire(self) -> tuple[int, ...]:
        return (self.owner, self.raiser, self.context, self.index)


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """`listed(collective, topo, *knobs)`: what a program prints that lists the signals of a bundle."""
    programs: dict[tuple[str, ...], Path] = {}

    def run(collective: Collective, topo: str, *knobs: str, calls: int = 3, runs: int = 2, without: str = "-") -> list[str]:
        where = programs.get((topo, *knobs))
        if where is None:
            where = programs[topo, *knobs] = tmp_path_factory.mktemp("signals")
            bundle = bundle_of(where, topo, *knobs, shapes=((8, 5), (3,)))
            runtime = folder("runtime")
            sources = (bundle / "module.cpp", runtime / "nccl" / "signals.cpp", runtime / "cuda" / "words.cpp", FAKES / "signals.cpp")
            run_tool((*find_compiler().command, "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", '-DTIDEC_RUNNER="host/target.hpp"', f"-I{runtime / 'include'}",
                      f"-I{runtime}", f"-I{bundle}", *map(str, sources), "-o", str(where / "list")), deadline_s=120)
        number = list(Collective).index(collective)
        done = subprocess.run([str(where / "list"), str(number), str(calls), str(runs), without], capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.splitlines()

    return run


def test_an_all_gather_of_two_nodes_gives_a_credit_takes_one_puts_and_takes_what_was_put(listed):
    lines = listed(Collective.ALL_GATHER, "2x1", "stripes=2", "chunks=4", calls=2, runs=1)
    # kind, rank, call, owner, raiser, context, index, level, signals: the scatter's wait for the put takes nothing off, as the rail's took it.
    assert lines[:6] == ["rank 0 1 2", "raise 0 0 1 0 0 0 1 1", "await 0 0 0 1 0 0 1 1", "raise 0 0 1 0 0 1 1 1", "await 0 0 0 1 0 1 1 1", "await 0 0 0 1 0 1 1 0"]


@pytest.mark.parametrize("collective", list(Collective))
@pytest.mark.parametrize(("topo", "knobs"), [("2x1", ("stripes=2", "chunks=4")), ("3x2", ("stripes=2", "chunks=2", "n_part=2", "k=1"))])
def test_every_counter_has_a_wire_of_its_own_and_waits_take_what_was_raised(listed, collective, topo, knobs):
    calls, runs = 3, 2
    text = listed(collective, topo, *knobs, calls=calls, runs=runs)
    head = [list(map(int, line.split()[1:])) for line in text if line.startswith("rank")]
    lines = [Line(kind, *map(int, rest)) for kind, *rest in (line.split() for line in text if not line.startswith("rank"))]
    assert lines and len({tuple(rest) for _, *rest in head}) == 1
    contexts, indices = head[0][1:]
    assert contexts == (2 if collective is Collective.REDUCE_SCATTER else 1)
    lanes = int(topo[2:])
    assert all(x.owner % lanes == x.raiser % lanes for x in lines), "a signal leaves its rail"
    raised: dict[tuple[int, ...], list[Line]] = defaultdict(list)
    awaited: dict[tuple[int, ...], list[Line]] = defaultdict(list)
    for x in lines:
        (raised if x.kind == "raise" else awaited)[x.wire].append(x)
    assert raised.keys() == awaited.keys()
    for wire in raised:
        owner, raiser, context, index = wire
        assert context < contexts and index < indices
        # Dense: what has an index has all below it.
        assert index == 0 or (owner, raiser, context, index - 1) in raised
        levels = [x.value for x in raised[wire]]
        assert levels == list(range(1, len(levels) // runs + 1)) * runs, wire
        # Up to a wait of level v, v signals of this run and all of the run before are taken off.
        run = top = taken = 0
        for x in awaited[wire]:
            if x.call // calls > run:
                run, top = run + 1, 0
            top, taken = max(top, x.value), taken + x.count
            assert taken == run * (len(levels) // runs) + top, (wire, x)


def test_a_flag_that_nobody_awaits_is_refused(listed):
    for collective, flag in ((Collective.ALL_GATHER, "have"), (Collective.REDUCE_SCATTER, "credit")):
        (line,) = [x for x in listed(collective, "2x1", "stripes=2", "chunks=4", without=flag) if x.startswith("failure")]
        assert re.search(rf"^failure the signals of {flag}\[1\] of rank \d\.0 by rank \d\.0 do not balance: two calls raise it to 1 and 2, and wait for 0 and 0$", line), line


# ---- whole jobs


def compile_unit(source: Path, target: Path, *include: Path) -> None:
    """By nvcc, which knows where the headers of CUDA are."""
    flags = ("-std=c++17", "-O1", "-Xcompiler=-fPIC,-pthread,-ffp-contract=off,-Wall,-Wextra,-Wno-missing-field-initializers", '-DTIDEC_RUNNER="nccl/target.hpp"')
    places = (folder("runtime") / "include", folder("runtime"), FAKES, *include)
    run_tool((*find_nvcc().command, *flags, *(f"-I{p}" for p in places), "-c", str(source), "-o", str(target)), deadline_s=120)


def line_of(text: str, schedule: str) -> int:
    """The line of a schedule that has that text."""
    (found,) = [i for i, line in enumerate((folder("schedules") / schedule).read_text().splitlines(), 1) if text in line]
    return found


def link(target: Path, *objects: str) -> None:
    run_tool((*find_compiler().command, "-shared", "-pthread", *objects, "-o", str(target)), deadline_s=120)


@pytest.fixture(scope="module")
def fakes(tmp_path_factory) -> Path:
    """A folder with the libraries of the GPU and the NCCL that are none, and the objects of the runtime."""
    try:
        find_nvcc()
    except TidecError as problem:
        pytest.skip(problem.diagnostics[0].sentence)
    where, runtime = tmp_path_factory.mktemp("fakes"), folder("runtime")
    # Where only LD_LIBRARY_PATH says: what loads it has a path of its own to the GPU's.
    (where / "nccl").mkdir()
    for name in ("gpu", "nccl"):
        compile_unit(FAKES / f"{name}.cpp", where / f"{name}.obj")
    link(where / "libgpu.so", str(where / "gpu.obj"))
    link(where / "nccl" / "libnccl.so.2", str(where / "nccl.obj"), f"-L{where}", "-lgpu", f"-Wl,-rpath,{where}", "-Wl,-soname,libnccl.so.2")
    for source in (*(runtime / "nccl").glob("*.cpp"), *(runtime / "cuda").glob("*.cpp"), FAKES / "kernels.cpp"):
        compile_unit(source, where / f"{source.parent.name}_{source.stem}.o")
    return where


def job(fakes: Path, bundle: Path, *, calls: int = 4, seeds: int = 3, short: int = 0, deadline_s: float = 20.0, is_live: bool = False, environment: dict[str, str] | None = None, has_nccl: bool = True) -> list[dict]:
    """What a job of a bundle gives, a line a collective."""
    library = bundle.parent / "library.so"
    if not library.is_file():
        compile_unit(bundle / "module.cpp", bundle.parent / "module.o", bundle)
        link(library, str(bundle.parent / "module.o"), *map(str, fakes.glob("*.o")), f"-L{fakes}", "-lgpu", f"-Wl,-rpath,{fakes}", "-ldl")
    told = json.dumps({"bundle": str(bundle), "library": str(library), "gpu": str(fakes / "libgpu.so"), "calls": calls, "seeds": seeds, "short": short, "is_live": is_live, "deadline_s": deadline_s})
    paths = {"LD_LIBRARY_PATH": str(fakes / "nccl")} if has_nccl else {}
    done = subprocess.run([sys.executable, str(FAKES / "job.py"), told], env={**os.environ, "PYTHONPATH": str(ROOT), **paths, **(environment or {})}, capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("topo", "knobs", "rest"), [
    ("1x2", (), {}), ("2x1", (), {}), ("2x1", ("stripes=2", "chunks=4", "n_stg=3"), {}), ("2x1", ("n_part=3", "n_out=2"), {}), ("3x2", (), {}), ("3x2", ("stripes=2", "chunks=4"), {}),
    ("4x1", ("k=2",), {}), ("5x2", (), {"dtype": Dtype.FP32, "delivered": Dtype.BF16}), ("7x2", ("k=2", "n_out=2", "n_part=2", "stripes=2", "chunks=2"), {}),
    ("3x4", ("n_part=2",), {"dtype": Dtype.FP32}),
])
def test_ranks_with_rails_give_the_references_bits_in_every_run(fakes, tmp_path, topo, knobs, rest):
    bundle = bundle_of(tmp_path, topo, *knobs, **rest)
    for seed in ("1", "2"):
        for line in job(fakes, bundle, environment={"FAKE_SEED": seed}):
            assert line.get("difference", line) is None and line["digests"] == 1, (seed, line)


@pytest.mark.slow
@pytest.mark.parametrize(("topo", "knobs", "rest"), [("2x1", (), {}), ("2x1", ("stripes=2", "chunks=2", "n_part=2"), {"dtype": Dtype.FP32, "delivered": Dtype.BF16}), ("3x2", (), {})])
def test_ranks_with_rails_give_the_references_bits_call_by_call(fakes, tmp_path, topo, knobs, rest):
    """As tidec bench drives them."""
    lines = job(fakes, bundle_of(tmp_path, topo, *knobs, **rest), calls=3, is_live=True)
    assert len(lines) == 3 and not any(line["difference"] for line in lines), lines


@pytest.mark.slow
def test_a_shard_is_placed_by_one_copy_where_its_parameters_are_alike(fakes, tmp_path):
    """Of each rank: its shard for the rail, its own and the peer's into the landing, and the landing for whoever asked. Eight parameters would else be placed one by one."""
    gather, *_ = job(fakes, bundle_of(tmp_path, "2x1", shapes=((4, 3),) * 8), calls=1, seeds=1)
    assert gather["difference"] is None and gather["copies"] == 2 * 4


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "params", "pieces"), [(1024, 5, 1), (1024, 14, 2), (10240, 3, 9)])
def test_what_stays_at_home_goes_in_pieces(fakes, tmp_path, rows, params, pieces):
    """Of each rank: rows of 1 MiB some at a time, of at least 6 MiB, or each of 10 MiB in two pieces of 4 MiB and one of 2; one copy of all to the peer, and the landing for whoever asked."""
    gather, *_ = job(fakes, bundle_of(tmp_path, "1x2", shapes=((rows, 1024),) * params), calls=1, seeds=1)
    assert gather["difference"] is None and gather["copies"] == 2 * (pieces + 1 + 1)


@pytest.mark.slow
@pytest.mark.parametrize("topo", ["1x2", "2x1"])
def test_where_the_driver_lets_no_node_of_a_graph_read_elsewhere_copies_go_one_by_one(fakes, tmp_path, topo):
    """As it does where the node was made for memory of another kind. Seven unequal parameters are a graph."""
    bundle = bundle_of(tmp_path, topo, shapes=tuple((8 + 2 * i, 3 + i) for i in range(7)))
    for environment in ({}, {"FAKE_FIXED_NODES": "1"}):
        gather, *_ = job(fakes, bundle, calls=2, seeds=2, environment=environment)
        assert gather["difference"] is None and gather["digests"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("knobs", "puts"), [(("W=2", "k=2"), 2), (("W=2", "k=1"), 1), (("W=2", "k=2", "stripes=2", "chunks=2"), 4)])
def test_all_puts_of_a_round_are_one_group(fakes, tmp_path, knobs, puts):
    """What is not is sent one after the other, where a proxy of NCCL's sends it. The all-gather of three nodes puts one slot a round."""
    gather, reduce, _ = job(fakes, bundle_of(tmp_path, "3x2", *knobs), calls=2, seeds=1)
    assert (gather["most_puts"], reduce["most_puts"]) == (1, puts)


@pytest.mark.slow
@pytest.mark.parametrize(("topo", "knobs", "steps"), [
    ("1x2", ("chunks=4", "n_stg=4"), 4), ("1x4", ("chunks=4", "n_stg=2"), 2), ("1x2", ("chunks=8", "n_stg=3"), 3), ("1x2", ("chunks=3", "n_stg=1"), 1), ("2x2", ("chunks=4", "n_stg=3"), 3),
])
def test_sums_whose_blocks_are_staged_at_once_are_one_launch(fakes, tmp_path, topo, knobs, steps):
    """As many steps as there are slots, since a push waits for the sum that its slot had before. The shapes have no gaps that become zero."""
    bundle = bundle_of(tmp_path, topo, *knobs, shapes=((16, 24), (32, 8)))
    for seed in ("1", "2"):
        _, *reduced = job(fakes, bundle, environment={"FAKE_SEED": seed})
        assert [(line["difference"], line["digests"], line["most_steps"]) for line in reduced] == [(None, 1, steps)] * 2


@pytest.mark.slow
def test_a_rank_that_stops_early_is_named_with_the_flag_and_the_line(fakes, tmp_path):
    gather, reduce, _ = job(fakes, bundle_of(tmp_path, "2x1"), short=2, deadline_s=1.0)
    assert "rank 0.0, stream rail, call 2: credit[1] by rank 1.0 is 2, and 3 is awaited" in gather["why"] and f"schedules/tide_ag.py:{line_of('s.wait(credit', 'tide_ag.py')}" in gather["why"]
    assert "rank 0.0, stream net, call 2: arrived[1] by rank 1.0 is 2, and 3 is awaited" in reduce["why"] and f"schedules/tide_rs.py:{line_of('s.wait(arrived', 'tide_rs.py')}" in reduce["why"]


@pytest.mark.slow
def test_what_nccl_lacks_is_said_with_what_to_do(fakes, tmp_path):
    bundle = bundle_of(tmp_path, "2x1")
    for why in (line["why"] for line in job(fakes, bundle, environment={"FAKE_NCCL_VERSION": "22809"})):
        assert "version 2.28.9) is too old" in why and "plans of several nodes need NCCL 2.31.0 or later" in why and "LD_PRELOAD" in why
    for why in (line["why"] for line in job(fakes, bundle, environment={"FAKE_NO_RMA": "1"})):
        assert "NCCL has no host RMA on the rail of lane 0" in why
    for why in (line["why"] for line in job(fakes, bundle, has_nccl=False)):
        assert "NCCL cannot be loaded: libnccl.so.2" in why and "LD_PRELOAD" in why
