"""Whether the compiled program issues what was proved: the echo is built and compared with the plans, line by line.

N ranks. The echo prints the op stream of a rank; `plan/listing.py` gives the same lines from the plan. A build lies in a folder of its own that
is gone afterwards.
"""
from __future__ import annotations

import hashlib
import itertools
import os
import random
import select
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tidec.build.toolchain import Compiler, find_compiler, run_tool
from tidec.emit.manifest import EchoReport
from tidec.emit.render import MODULE, Source
from tidec.emit.targets import target
from tidec.errors import Diagnostic, Spot, TidecError
from tidec.inputs.document import quoted
from tidec.plan.ir import Plan
from tidec.plan.listing import step_lines
from tidec.plan.steps import Step
from tidec.shipped import folder

CALLS = (0, 3)
MAX_STEPS = 2_000_000
NUM_SAMPLED = 16
BUILD_S, SILENCE_S = 300.0, 60.0
NOTHING = "(nothing more)"
_HELP = "report this plan: its emitted program must never be run"


def check_echo(sources: Sequence[Source], plans: Sequence[Plan], *, max_steps: int = MAX_STEPS) -> EchoReport:
    """Build the echo of emitted sources and compare what it issues with the plans that they were emitted from, in that order.

    Every rank in calls 0 and 3, while that is at most max_steps ops together; else the lanes of nodes 0, 1 and M-1 in call 0, and 16 ranks
    chosen by the plan's digest in call 3, of which only some are taken where they have more than MAX_STEPS ops together.
    Raises E004 where one rank has more than MAX_STEPS ops in a call.
    Raises V501 at the first line that differs; E002 where the compiler is missing or fails; E003 where no temporary folder can be made.
    """
    if not plans:
        return EchoReport(0, 0, hashlib.sha256().hexdigest())
    told = hashlib.sha256()
    per_rank = [_count(p, MAX_STEPS) for p in plans]
    is_whole = len(CALLS) * sum(p.ranks * n for p, n in zip(plans, per_rank)) <= max_steps
    steps, fewest = 0, plans[0].ranks
    try:
        with tempfile.TemporaryDirectory(prefix="tidec-echo-", ignore_cleanup_errors=True) as beside:
            echo = build_echo(sources, Path(beside), find_compiler())
            for program, plan in enumerate(plans):
                covered: set[int] = set()
                for call in CALLS:
                    ranks = range(plan.ranks) if is_whole else _thinned(sample(plan, call), MAX_STEPS // per_rank[program])
                    covered.update(ranks)
                    steps += compare(echo, plan, program=program, call=call, ranks=ranks, told=told)
                fewest = min(fewest, len(covered))
    except OSError as problem:
        raise TidecError(Diagnostic("E003", "the echo cannot be built in a temporary folder", reason=problem.strerror or str(problem),
                                    help="set TMPDIR to a folder that can be written")) from problem
    return EchoReport(fewest, steps, told.hexdigest())


def _count(plan: Plan, max_steps: int) -> int:
    """The ops of rank 0 in one call. Raises E004 where they are more than max_steps."""
    count = sum(1 for _ in itertools.islice(plan.steps(0), max_steps + 1))
    if count > max_steps:
        raise TidecError(Diagnostic("E004", f"the echo of a plan of {plan.nodes:,} nodes is not compared", help="add --no-echo: the bundle then says that it was not",
                                    reason=f"one rank issues more than {max_steps:,} ops in a call"))
    return count


def _thinned(ranks: tuple[int, ...], at_most: int) -> tuple[int, ...]:
    """At most that many of the ranks, but two, evenly over them, the first and the last among them."""
    take = max(2, at_most)
    if len(ranks) <= take:
        return ranks
    return tuple(ranks[i * (len(ranks) - 1) // (take - 1)] for i in range(take))


def sample(plan: Plan, call: int) -> tuple[int, ...]:
    """The ranks that stand for a large plan: in call 0 the lanes of the first, second and last node, in later calls 16 chosen by its digest."""
    if call == 0:
        return tuple(n * plan.lanes + j for n in sorted({0, min(1, plan.nodes - 1), plan.nodes - 1}) for j in range(plan.lanes))
    return tuple(sorted(random.Random(plan.digest).sample(range(plan.ranks), min(NUM_SAMPLED, plan.ranks))))


def build_echo(sources: Sequence[Source], beside: Path, compiler: Compiler, *, flags: Sequence[str] = ("-O0",)) -> Path:
    """Compile the echo of emitted sources in a folder and give the program's path. flags: more arguments. Raises E002."""
    for source in sources:
        (beside / source.name).write_text(source.text, encoding="utf-8")
    runtime = folder("runtime")
    echo = beside / "echo"
    command = (
        *compiler.command, "-std=c++17", *flags, f'-DTIDEC_RUNNER="{target("echo").runner}"', f"-I{runtime / 'include'}", f"-I{beside}",
        str(beside / MODULE), str(runtime / "echo.cpp"), "-o", str(echo),
    )
    run_tool(command, deadline_s=BUILD_S, folder=beside)
    return echo


def compare(echo: Path, plan: Plan, *, program: int, call: int, ranks: Sequence[int], told: hashlib._Hash) -> int:
    """Compare the echo of one program in one call on some ranks with its plan; `told` is updated with what it printed.

    Returns the number of ops.  Raises V501.
    """
    steps = 0
    for rank, got in echoed(echo, plan, program=program, call=call, ranks=ranks):
        told.update(got)
        here = list(plan.steps(rank, call))
        steps += len(here)
        want = [line for step in here for line in step_lines(step, plan.lowering)]
        if got != "".join(f"{line}\n" for line in want).encode():
            raise _differs(plan, here, got.decode(errors="replace").splitlines(), rank=rank, call=call)
    return steps


def echoed(echo: Path, plan: Plan, *, program: int, call: int, ranks: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """What the echo prints for each rank. Raises V501 where it fails, prints something else or is silent for a minute."""
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen((str(echo), str(program), str(call), *_ranges(ranks)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        try:
            read = _Reader(child.stdout.fileno())
            for rank in ranks:
                head = read.line().split()
                if len(head) != 3 or head[:2] != [b"rank", str(rank).encode()]:
                    errors.seek(0)
                    said = errors.read(400).decode(errors="replace").strip()
                    raise _fails(plan, rank, call, f"it ended early{f': {said}' if said else ''}")
                yield rank, read.exactly(int(head[2]))
            if read.line() or child.wait(SILENCE_S):
                raise _fails(plan, ranks[-1], call, f"it prints more than it was asked for, or ends with {child.returncode}")
        except (TimeoutError, subprocess.TimeoutExpired) as problem:
            raise _fails(plan, ranks[0], call, f"it was silent for {SILENCE_S:.0f} s") from problem
        finally:
            child.kill()
            child.wait()
            child.stdout.close()


class _Reader:
    """Reads a pipe; raises TimeoutError where nothing comes for a minute."""

    def __init__(self, pipe: int):
        self._pipe, self._bytes = pipe, bytearray()

    def line(self) -> bytes:
        """Up to the next end of a line, or what is left at the end."""
        while b"\n" not in self._bytes and self._more():
            pass
        end = self._bytes.find(b"\n")
        return self._take(end + 1 if end >= 0 else len(self._bytes))

    def exactly(self, count: int) -> bytes:
        """That many bytes, or fewer at the end."""
        while len(self._bytes) < count and self._more():
            pass
        return self._take(count)

    def _take(self, count: int) -> bytes:
        data = bytes(self._bytes[:count])
        del self._bytes[:count]
        return data

    def _more(self) -> bool:
        ready, _, _ = select.select([self._pipe], [], [], SILENCE_S)
        if not ready:
            raise TimeoutError
        data = os.read(self._pipe, 1 << 20)
        self._bytes += data
        return bool(data)


def _ranges(ranks: Sequence[int]) -> list[str]:
    """The ranks as arguments of the echo: 0-7 16 20-23."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return [f"{first}-{last}" if last > first else str(first) for first, last in runs]


def _named(plan: Plan, rank: int, call: int) -> str:
    group = plan.groups[0] if plan.groups else "a group"
    return f"the {plan.collective.value.replace('_', '-')} of {quoted(group)} on rank {rank // plan.lanes}.{rank % plan.lanes} in call {call}"


def _fails(plan: Plan, rank: int, call: int, reason: str) -> TidecError:
    return TidecError(Diagnostic("V501", f"the compiled echo fails in {_named(plan, rank, call)}", reason=reason, help=_HELP))


def _differs(plan: Plan, steps: Sequence[Step], got: Sequence[str], *, rank: int, call: int) -> TidecError:
    """The first line that differs, of both sides, and the line of the schedule that it should come from."""
    number = 0
    spots: tuple[Spot, ...] = ()
    wanted = echoed_line = NOTHING
    for step, line in ((step, line) for step in steps for line in step_lines(step, plan.lowering)):
        spots, wanted, echoed_line = (step.op.spot,), line, got[number] if number < len(got) else NOTHING
        if wanted != echoed_line:
            break
        number += 1
    else:
        wanted, echoed_line = NOTHING, got[number] if number < len(got) else NOTHING
    return TidecError(Diagnostic(
        "V501", f"the compiled program differs from {_named(plan, rank, call)}", spots=spots, reason=f"line {number + 1} of what it issues is another one",
        example=(f"plan:  {wanted}", f"echo:  {echoed_line}"), help=_HELP))
