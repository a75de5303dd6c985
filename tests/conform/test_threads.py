"""The same program under ThreadSanitizer: all ranks of a plan as threads, one a stream and one a wire. What is not ordered by a wait is a race."""
from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from conform_cases import gather, reduce

from tidec.build.library import FLAGS
from tidec.build.toolchain import find_compiler, run_tool
from tidec.emit.render import render
from tidec.inputs.signature import Dtype
from tidec.plan.ir import Plan
from tidec.shipped import folder
from tidec.verify.certificate import Proved

pytestmark = pytest.mark.slow
CASES = [
    case for topo in ("2x2", "3x2") for case in (
        reduce(topo, "awkward"), reduce(topo, "awkward", "chunks of a partial outbox"), reduce(topo, "awkward", "one slot", Dtype.FP32), gather(topo, "awkward"),
        gather(topo, "awkward", "to bf16"))
]


def sanitized(plans: list[Plan], beside: Path, dropped: str = "") -> Path:
    """The C++ program of these plans with the sanitizer in it. dropped: how ops begin that the first plan's walk leaves out."""
    for i, source in enumerate(render([Proved(p, "{}") for p in plans])):
        assert i or dropped in source.text, f"the walk has no {dropped}"
        (beside / source.name).write_text(source.text.replace(dropped, f"if (false) {dropped}") if i == 0 and dropped else source.text)
    runtime = folder("runtime")
    flags = [f for f in FLAGS if f not in ("-O2", "-fPIC")]
    units = [beside / "module.cpp", runtime / "host_main.cpp", *sorted((runtime / "host").glob("*.cpp"))]
    command = (*find_compiler().command, *flags, "-O1", "-g", "-fsanitize=thread", '-DTIDEC_RUNNER="host/target.hpp"', f"-I{runtime / 'include'}", f"-I{runtime}",
               f"-I{beside}", *map(str, units), "-o", str(beside / "host"))
    run_tool(command, deadline_s=300)
    return beside / "host"


def ran(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    # The sanitizer needs the addresses that it knows, so they are not drawn where that can be asked for.
    fixed = ("setarch", "-R") if shutil.which("setarch") else ()
    return subprocess.run((*fixed, program, *map(str, arguments)), capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return sanitized([c.plan for c in CASES], tmp_path_factory.mktemp("sanitized"))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[c.name for c in CASES])
def test_no_race_in_any_stream(number, program):
    threads = ran(program, number, 5, 1, 8, "threads")
    assert threads.returncode == 0 and not threads.stderr, threads.stderr[:4000]
    drawn = ran(program, number, 5, 1, 8, "drawn")
    digests = {line.split()[1] for line in (threads.stdout + drawn.stdout).splitlines()}
    assert len(threads.stdout.splitlines()) == 8 and len(digests) == 1


@pytest.mark.parametrize(("case", "dropped"), [(reduce("2x2", "awkward"), "ops.wait(kSum, kStaged()"), (gather("2x2", "awkward"), "ops.wait(kScatter, kRoom()")],
                         ids=["staged", "room"])
def test_a_wait_that_is_left_out_is_a_race(case, dropped, tmp_path):
    wrong = ran(sanitized([case.plan], tmp_path, dropped), 0, 5, 1, 8, "threads")
    assert "WARNING: ThreadSanitizer: data race" in wrong.stderr and wrong.returncode != 0


def test_the_program_lists_its_plans_and_refuses_what_it_does_not_know(program):
    listed = ran(program)
    assert [line.split()[3] for line in listed.stdout.splitlines()] == [c.plan.digest for c in CASES]
    for wrong in (("7",), (len(CASES), 1, 1, 1, "drawn"), (0, 1, 1, 1, "both"), (0, "x", 1, 1, "drawn"), (0, 1, 1, 0, "drawn")):
        assert ran(program, *wrong).returncode == 2
