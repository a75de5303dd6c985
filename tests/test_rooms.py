"""The rooms stand in one order, imports go to the left, and each dependency has one door (DESIGN sections 2 and 3)."""
from __future__ import annotations

import ast
import fnmatch
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    "errors", "shipped", "index", "inputs", "schedule", "size", "plan", "interpret", "verify", "draw", "emit", "build", "cache", "run", "pipeline", "api", "commands", "cli",
)
DOORS = {
    "z3": ("tidec/verify/solver.py",),
    "networkx": ("tidec/verify/graph.py",),
    "jinja2": ("tidec/emit/render.py",),
    "pybind11": ("tidec/build/toolchain.py",),
    "numpy": ("tidec/run/", "tidec/interpret/bits.py"),
    "torch": ("tidec/run/", "tidec/interpret/bits.py"),
}
# The two files that belong to no room: the public names, and the module that is run.
FRONT = {"tidec/__init__.py": (), "tidec/__main__.py": ("cli",)}
TOP = {"pyproject.toml", "tidec", "templates", "runtime", "schedules", "tests", "examples", "README.md", "LICENSE"}
ENVIRONMENT = {"tidec/cli.py", "tidec/build/toolchain.py", "tidec/run/library.py"}
MAX_LINES = 400
SOURCE = (".py", ".hpp", ".cpp", ".cu", ".cuh", ".h", ".jinja")


def files(folder: str, *endings: str) -> list[Path]:
    return sorted(p for p in (ROOT / folder).rglob("*") if p.suffix in endings and "__pycache__" not in p.parts)


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def room_of(file: str) -> str:
    """The room of a file of tidec/, "" for one that stands in none."""
    parts = file.removesuffix(".py").split("/")
    room = parts[1]
    return room if room in ROOMS and len(parts) in (2, 3) else ""


def imports(source: str, package: str = "") -> Iterator[str]:
    """Every module that a source imports anywhere in it, dotted; relative ones resolved in `package`, names of a package among them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def rooms_entered(source: str, package: str = "") -> set[str]:
    """The rooms that a source imports from."""
    return {m.split(".")[1] for m in imports(source, package) if m.startswith("tidec.") and m.split(".")[1] in ROOMS}


def doors_used(source: str) -> set[str]:
    return {m.split(".")[0] for m in imports(source) if m.split(".")[0] in DOORS}


def test_the_readers_see_every_kind_of_import():
    source = "def f():\n    from tidec.verify import solver\n    import tidec.plan.ir\nfrom tidec import emit, __version__\nfrom ..cache import key\nimport z3.z3util"
    assert rooms_entered(source, "tidec.inputs") == {"verify", "plan", "emit", "cache"}
    assert doors_used(source) == {"z3"}


@pytest.mark.parametrize("file", [name(p) for p in files("tidec", ".py")])
def test_a_file_stands_in_a_room_and_imports_from_its_left(file):
    if file in FRONT:
        assert rooms_entered((ROOT / file).read_text(encoding="utf-8"), "tidec") <= set(FRONT[file])
        return
    room = room_of(file)
    assert room, f"{file} stands in no room; the rooms are {', '.join(ROOMS)}"
    allowed = ROOMS[: ROOMS.index(room) + 1]
    package = ".".join(file.split("/")[:-1])
    wrong = rooms_entered((ROOT / file).read_text(encoding="utf-8"), package) - set(allowed)
    assert not wrong, f"{file} imports from {', '.join(sorted(wrong))}, which stand right of {room}"


@pytest.mark.parametrize("file", [name(p) for p in files("schedules", ".py")])
def test_a_schedule_imports_only_the_language(file):
    assert {m for m in imports((ROOT / file).read_text(encoding="utf-8")) if m.count(".") <= 2} == {"tidec.schedule.idioms"}


def test_a_dependency_has_one_door():
    for file in map(name, files("tidec", ".py")):
        for dependency in doors_used((ROOT / file).read_text(encoding="utf-8")):
            assert any(file == door or (door.endswith("/") and file.startswith(door)) for door in DOORS[dependency]), f"{file} imports {dependency}"


def test_nccl_is_named_by_its_folder_only():
    for file in files("runtime", *SOURCE):
        includes = [line for line in file.read_text(encoding="utf-8").splitlines() if line.lstrip().startswith("#include") and "nccl" in line.lower()]
        assert not includes or name(file).startswith("runtime/nccl/"), f"{name(file)} includes NCCL"


def test_the_environment_is_read_in_three_files():
    for file in map(name, files("tidec", ".py")):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        reads = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr in ("environ", "getenv", "environb")]
        assert not reads or file in ENVIRONMENT, f"{file}:{reads[0].lineno} reads the environment"


def test_no_handler_catches_everything():
    for file in map(name, files("tidec", ".py")):
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ExceptHandler):
                caught = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {"Exception"}
                assert not caught & {"Exception", "BaseException"}, f"{file}:{node.lineno} catches every exception"


@pytest.mark.parametrize("folder", ["tidec", "schedules", "runtime", "templates", "tests", "examples"])
def test_a_file_has_fewer_than_400_lines(folder):
    long = {name(p): n for p in files(folder, *SOURCE) if (n := len(p.read_text(encoding="utf-8").splitlines())) >= MAX_LINES}
    assert not long, f"split: {long}"


def test_the_top_level_holds_what_the_design_names():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no git checkout")
    top = {path.split("/")[0] for path in listed.stdout.split("\0") if path}
    assert {t for t in top if not t.startswith(".")} <= TOP


def python(*args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, check=True, env=environment)


def test_importing_tidec_loads_none_of_its_dependencies():
    shown = python("-c", "import tidec, sys; print(sorted(sys.modules))").stdout
    loaded = {m.split(".")[0] for m in ast.literal_eval(shown)}
    assert not loaded & {*DOORS, "json", "argparse", "inspect"}


def seconds(*args: str) -> float:
    """The shortest of seven runs."""

    def once() -> float:
        start = time.perf_counter()
        python(*args)
        return time.perf_counter() - start

    return min(once() for _ in range(7))


def test_help_needs_at_most_150_ms():
    assert "usage: tidec" in python("-m", "tidec", "--help").stdout
    nothing = seconds("-c", "pass")
    assert seconds("-m", "tidec", "--help") <= max(0.15, 6 * nothing)


def test_no_folder_of_tests_is_skipped(pytestconfig):
    """pytest leaves out folders named build of its own accord; every folder that holds tests must be walked."""
    skipped = pytestconfig.getini("norecursedirs")
    folders = {part for p in files("tests", ".py") if p.name.startswith("test_") for part in p.relative_to(ROOT / "tests").parts[:-1]}
    assert "build" in folders
    assert not [f for f in folders if any(fnmatch.fnmatch(f, pattern) for pattern in skipped)]
