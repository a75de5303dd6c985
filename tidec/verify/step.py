"""What two collectives of a step do to each other, for every M: claims across the all-gather and the reduce-scatter, and of what stands between them.

An op belongs to the file that its line stands in. Of two ops of one collective nothing is asked again: a step keeps their relative order, so their own proof
stands. Asked are the landing that both use (V107, V201), the flags of the step (V202, V203), and of every wait of all three texts that its producer is
issued before it, in the order of issue of this step (V204). Source: facts/proofs.md section 4, "Cross-collective I4".
"""
from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tidec.inputs.ask import Mode
from tidec.schedule.catalog import STEP_FILE, traced_step
from tidec.schedule.program import Program, Statement
from tidec.verify.families import World
from tidec.verify.judge import Judge, Listener, nobody
from tidec.verify.order import check_flag, check_races, check_wait
from tidec.verify.placement import check_contents, check_ranges, check_written
from tidec.verify.prove import ANY, AnyNodes, NoStore, Report, Store, prove_branch, prove_branches
from tidec.verify.solver import Answers

SCHEMA = "tidec.step/1"
DEPTH = 4        # waits on a path: pushed, the gate, room, and the fence of the node behind the copies


class Place(Enum):
    """Where the next all-gather is issued: between the two phases of the reduce-scatter, or behind both."""

    AHEAD = "ahead"
    BEHIND = "behind"


def place_of(mode: Mode, n_out: int | str) -> Place:
    """Where the next all-gather of a mode goes: ahead, but for gradients in its landing that are read until the network phase ends."""
    return Place.BEHIND if mode is Mode.SLOT_REUSE and n_out != "full" else Place.AHEAD


@dataclass(frozen=True, slots=True)
class Step:
    """A step of backward as two branches, M = 1 and M >= 2."""

    alone: Program
    several: Program


def step_of(gather: Program, reduce: Program, *, mode: Mode, place: Place, source: str = "") -> Step:
    """The step of two programs. source: replaces the text of the step (for mutants in tests). Raises P007."""
    at = dict(slot_reuse=mode is Mode.SLOT_REUSE, ahead=place is Place.AHEAD, source=source)
    return Step(*(traced_step(gather, reduce, single_node=single_node, **at) for single_node in (True, False)))


def prove_step(
    step: Step, *, with_premises: bool = False, nodes: int | AnyNodes = ANY, store: Store = NoStore(), first_only: bool = False, listener: Listener = nobody,
    answers: Answers | None = None,
) -> Report:
    """Decides every claim across the parts of a step. What the arguments mean is said at `prove`."""
    return prove_branches((step.alone, step.several), CHECKS, SCHEMA, with_premises=with_premises, nodes=nodes, store=store, first_only=first_only,
                          listener=listener, answers=answers)


def prove_step_branch(gather: Program, reduce: Program, *, mode: Mode, single_node: bool) -> Report:
    """`prove_step` of one branch of two programs, as stored plans have them, with the all-gather where the mode has it; nothing is kept."""
    place = place_of(mode, dict(reduce.knobs)["n_out"])
    branch = traced_step(gather, reduce, single_node=single_node, slot_reuse=mode is Mode.SLOT_REUSE, ahead=place is Place.AHEAD)
    return prove_branch(branch, single_node=single_node, checks=CHECKS)


def is_between(a: Statement, b: Statement) -> bool:
    """The ops are of two texts, or both of the step's own."""
    return a.op.spot.file != b.op.spot.file or _is_own(a)


def _is_own(s: Statement) -> bool:
    return s.op.spot.file == STEP_FILE


def _placed(w: World, judge: Judge) -> None:
    check_ranges(w, judge, is_asked=_is_own)
    check_contents(w, judge, is_asked=_is_own)


def _written(w: World, judge: Judge) -> None:
    check_written(w, judge, is_asked=lambda s, buffer: s.op.spot.file != w.buffers[buffer].spot.file)


def _flags(w: World, judge: Judge) -> None:
    own = [f.name for f in w.program.flags if f.spot.file == STEP_FILE]
    for name in own:
        check_flag(w, judge, w.flags[name])
    for s in w.statements:
        if s.op.waits:
            check_wait(w, judge, s, is_known=s.op.waits[0].flag not in own, among="in the order of issue of a step")


def _races(w: World, judge: Judge) -> None:
    check_races(w, judge, is_asked=is_between, depth=DEPTH)


CHECKS = (_placed, _written, _flags, _races)
