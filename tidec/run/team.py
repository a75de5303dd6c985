"""The held groups of one process group, and what they share: its ranks, the board, and what runs each plan, opened by all ranks at the same point."""
from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch.distributed as dist

from tidec.errors import Diagnostic, TidecError, bytes_text
from tidec.inputs.ask import Collective
from tidec.plan.ir import Plan
from tidec.run.agree import Board, Peers
from tidec.run.collective import Node, Place, Reducer, Ring
from tidec.run.device import CPU, Device
from tidec.run.fallback import Reason, because
from tidec.run.held import Held
from tidec.run.library import Opened
from tidec.run.loan import Swap, swap_by_torch
from tidec.run.watch import Watch

# What ranks that come there say on the board.
_UNINSTALL = "tidec.uninstall"
# Lines of a board, where the host goes on while calls do. No GPU takes so many calls before it carries out the first.
_LINES_AHEAD = 1024
# Nodes of models that went without a meeting of all ranks: others may still write to their memory, so it goes with the process.
_LEFT: list[Node] = []


@dataclass(slots=True)
class Libraries:
    """What plans are opened from. rt: the module tidec_rt.  library: a tidec_rt.Library.  programs, sum_ctas: of each plan, by its digest, its number in there,
    and the CTAs of its sums.  swap: lends storages."""

    rt: object
    library: object
    programs: Mapping[str, int]
    sum_ctas: Mapping[str, int]
    swap: Swap


def libraries(opened: Opened, rt: object, swap: Swap = swap_by_torch) -> Libraries:
    """A bundle's library, loaded."""
    plans = opened.bundle.plans
    return Libraries(rt, rt.Library(os.fspath(opened.library)), {plan.digest: number for plan, number in zip(plans, opened.programs)},
                     {plan.digest: ctas.sum for plan, ctas in zip(plans, opened.bundle.ctas)}, swap)


@dataclass(slots=True)
class Team:
    """The groups of one process group.

    deadline_ms: how long a rank waits for the others in a call.  is_poisoned: landings hold NaN once they are let go.  device: where their parameters lie.
    board: `None` = nothing was opened, or all is closed.  watch: what ends the process where a call does not end; `None` on the CPU, where calls do that
    themselves.  runs: by the digests of plans.
    """

    peers: Peers
    deadline_ms: int
    is_poisoned: bool
    device: Device = CPU
    board: Board | None = None
    watch: Watch | None = None
    libraries: Libraries | None = None
    nodes: list[Node] = field(default_factory=list)
    runs: dict[str, Ring | Reducer | Reason] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)

    def prepare(self, libraries: Libraries) -> None:
        """Make the board, and what watches over calls. Every rank does. Raises F011."""
        self.libraries = libraries
        if not self.device.is_behind:
            self.board = Board(self.peers)
            return
        self.board = Board(self.peers, num_lines=_LINES_AHEAD)
        self.watch = Watch(self.board, self.deadline_ms / 1000)

    def open(self, plan: Plan) -> Ring | Reducer | Reason:
        """What runs a plan, or why some rank, of these or of the replicas, cannot.

        NOTE: where the plan is new, ranks exchange handles over their process group, so all of them have to come here at the same point. Raises F012 and R001
        where one does not.
        """
        if plan.digest not in self.runs:
            self.board.meet(f"the opening of plan {plan.digest[:12]}", self.deadline_ms / 1000)
            tell_lines(memory_line((plan,), device=self.device))
            self.open_all((plan,))
        return self.runs[plan.digest]

    def open_all(self, plans: Sequence[Plan]) -> Reason | None:
        """Open new plans; gives why one cannot be opened, in which case none behind it is."""
        for plan in plans:
            made, trouble = self._node(plan)
            trouble = self.peers.of_replicas(trouble)
            if trouble is not None:
                self.runs[plan.digest] = trouble
                return trouble
            rank, place = self.peers.rank, Place(self.device, self.libraries.swap, None if self.watch is None else self.watch.add)
            is_gather = plan.collective is Collective.ALL_GATHER
            self.runs[plan.digest] = Ring(plan, made, rank=rank, place=place, is_poisoned=self.is_poisoned) if is_gather else Reducer(plan, made, rank=rank, place=place)
        # What a rank zeroes is zero before another one writes there.
        self.device.synchronize()
        return None

    def _node(self, plan: Plan) -> tuple[Node | None, Reason | None]:
        """A connected node, or why some rank has none."""
        node, mine, trouble, of = None, b"", "", self.libraries
        try:
            with self.device.here():
                node = of.rt.Node(of.library, of.programs[plan.digest], self.peers.rank, of.sum_ctas[plan.digest], self.deadline_ms)
            self.nodes.append(node)
            mine = node.handle()
        except RuntimeError as problem:
            trouble = str(problem)
        handles = self.peers.gather(mine)
        if all(handles):
            try:
                with self.device.here():
                    node.connect(handles)
            except RuntimeError as problem:
                trouble = str(problem)
        found = self.peers.first_trouble(trouble)
        return node, None if found is None else because("F306", rank=found[0], what=found[1])

    @property
    def arena_bytes(self) -> int:
        """What the open plans hold of this rank's memory."""
        return sum(r.plan.arena.bytes for r in self.runs.values() if not isinstance(r, Reason)) if self.nodes else 0

    def spread(self) -> None:
        """Where a collective of one group stopped, none of the others goes on: ranks are missing, or do different things."""
        if any(held.is_broken for held in self.held):
            for held in self.held:
                held.is_broken = True

    def leave(self) -> None:
        """Close once all ranks are through with all that was begun. A rank whose collectives stopped waits for nobody, and says so.

        Guaranteed: whatever is raised, the team is closed; on a GPU memory that others may still write to stays. Raises F012 and R001 where a rank does not come.
        """
        has_met = False
        try:
            if self.board is not None:
                if any(held.is_broken for held in self.held):
                    self.board.write(f"{_UNINSTALL}, after a collective that stopped")
                else:
                    self._finish()
                    self.board.meet(_UNINSTALL, self.deadline_ms / 1000)
                    has_met = True
        finally:
            if self.device.is_behind and not has_met:
                leave_behind(self.nodes, self.watch)
            self.close()

    def _finish(self) -> None:
        """Wait for what this rank's GPU was given. Nobody watches over it any more. Raises R001 where it is not over at the deadline."""
        if not self.device.is_behind:
            return
        try:
            for node in self.nodes:
                node.wait(self.deadline_ms)
            self.device.synchronize()
        except RuntimeError as problem:
            raise TidecError(Diagnostic("R001", f"what was begun before {_UNINSTALL} does not end", reason="; ".join([str(problem), *self.board.where()]),
                                        help="look at the rank that is missing or silent")) from problem
        self.watch.close()

    def close(self) -> None:
        """NOTE: on a GPU only once all ranks have met, or where no call was made: others write to this one's memory."""
        if self.watch is not None:
            self.watch.close()
        for node in self.nodes:
            node.close()
        self.nodes.clear()
        if self.board is not None:
            self.board.close()
            self.board = None


def leave_behind(nodes: list[Node], watch: Watch | None) -> None:
    """Keep nodes of a GPU as long as the process lives: of a model that nobody has any more, or whose collectives stopped. Nobody watches over them."""
    _LEFT.extend(nodes)
    nodes.clear()
    if watch is not None:
        watch.stop()


def tell_lines(*lines: str) -> None:
    """Print on one rank of the job."""
    if dist.get_rank() == 0:
        for text in lines:
            print(text, file=sys.stderr, flush=True)


def memory_line(plans: Sequence[Plan], *, device: Device = CPU) -> str:
    """What the arenas of plans take of every rank, before it is taken."""
    memory = "GPU memory" if device.is_behind else "shared memory"
    parts = [sum(p.arena.bytes for p in plans if p.collective is c) for c in Collective]
    spelt = " and ".join(f"{bytes_text(num_bytes)} for {c.value.replace('_', '-')}s" for c, num_bytes in zip(Collective, parts))
    return f"tidec: {len(plans)} plan{'s take' if len(plans) != 1 else ' takes'} {bytes_text(sum(parts))} of {memory} on every rank: {spelt}"
