"""The held groups of one process group, and what they share: its ranks, the board, and what runs each plan, opened by all ranks at the same point."""
from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch.distributed as dist

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.ask import Collective
from tidec.plan.ir import Plan
from tidec.run.agree import Board, Peers
from tidec.run.collective import Node, Reducer, Ring
from tidec.run.fallback import Reason, because
from tidec.run.held import Held
from tidec.run.library import Opened


@dataclass(slots=True)
class Libraries:
    """What plans are opened from. rt: the module tidec_rt.  library: a tidec_rt.Library.  programs: of each plan, by its digest, its number in there."""

    rt: object
    library: object
    programs: dict[str, int]


def libraries(opened: Opened, rt: object) -> Libraries:
    """A bundle's library, loaded."""
    return Libraries(rt, rt.Library(os.fspath(opened.library)), {plan.digest: number for plan, number in zip(opened.bundle.plans, opened.programs)})


@dataclass(slots=True)
class Team:
    """The groups of one process group.

    deadline_ms: how long a node waits for other ranks.  is_poisoned: landings hold NaN once they are let go.  runs: by the digests of plans.
    """

    peers: Peers
    deadline_ms: int
    is_poisoned: bool
    board: Board | None = None
    libraries: Libraries | None = None
    nodes: list[Node] = field(default_factory=list)
    runs: dict[str, Ring | Reducer | Reason] = field(default_factory=dict)
    held: list[Held] = field(default_factory=list)

    def open(self, plan: Plan) -> Ring | Reducer | Reason:
        """What runs a plan, or why some rank, of these or of the replicas, cannot.

        NOTE: where the plan is new, ranks exchange handles over their process group, so all of them have to come here at the same point.
        """
        if plan.digest not in self.runs:
            tell_lines(memory_line((plan,)))
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
            is_gather, rank = plan.collective is Collective.ALL_GATHER, self.peers.rank
            self.runs[plan.digest] = Ring(plan, made, rank=rank, is_poisoned=self.is_poisoned) if is_gather else Reducer(plan, made, rank=rank)
        return None

    def _node(self, plan: Plan) -> tuple[Node | None, Reason | None]:
        """A connected node, or why some rank has none."""
        node, mine, trouble = None, b"", ""
        try:
            node = self.libraries.rt.Node(self.libraries.library, self.libraries.programs[plan.digest], self.peers.rank, 0, self.deadline_ms)
            self.nodes.append(node)
            mine = node.handle()
        except RuntimeError as problem:
            trouble = str(problem)
        handles = self.peers.gather(mine)
        if all(handles):
            try:
                node.connect(handles)
            except RuntimeError as problem:
                trouble = str(problem)
        found = self.peers.first_trouble(trouble)
        return node, None if found is None else because("F306", rank=found[0], what=found[1])

    def spread(self) -> None:
        """Where a collective of one group stopped, none of the others goes on: ranks are missing, or do different things."""
        if any(held.is_broken for held in self.held):
            for held in self.held:
                held.is_broken = True

    def meet(self) -> None:
        """Wait for all ranks. Raises R001 where one is gone."""
        try:
            self.peers.gather(None)
        except RuntimeError as problem:
            raise TidecError(Diagnostic("R001", "a rank does not come to tidec.uninstall", reason=str(problem), help="look at the rank that is missing")) from problem

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.nodes.clear()
        if self.board is not None:
            self.board.close()


def tell_lines(*lines: str) -> None:
    """Print on one rank of the job."""
    if dist.get_rank() == 0:
        for text in lines:
            print(text, file=sys.stderr, flush=True)


def memory_line(plans: Sequence[Plan]) -> str:
    """What the arenas of plans take of every rank, before it is taken."""
    parts = [sum(p.arena.bytes for p in plans if p.collective is c) for c in Collective]
    spelt = " and ".join(f"{_size(num_bytes)} for {c.value.replace('_', '-')}s" for c, num_bytes in zip(Collective, parts))
    return f"tidec: {len(plans)} plan{'s take' if len(plans) != 1 else ' takes'} {_size(sum(parts))} of shared memory on every rank: {spelt}"


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB" if num_bytes >= 2**20 else f"{num_bytes / 2**10:.1f} KiB"
