"""What is planned: one collective of one group on M nodes of L lanes, folded, with every byte placed.

M nodes, L lanes, N = M*L ranks. A `Plan` is a branch of a schedule's program (M = 1, or M >= 2 with M still a symbol in it) with the
numbers that make it concrete: the node count, the layout and the arena.
"""
from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidec.errors import Diagnostic, TidecError
from tidec.index import evaluate
from tidec.inputs.ask import Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.signature import Dtype
from tidec.plan.arena import Arena, lay_arena
from tidec.plan.layout import GroupLayout, SubSlices
from tidec.plan.steps import Step
from tidec.plan.walk import Walk
from tidec.schedule.program import Program


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One collective of one group; built by `lower`, or read back by `plan_from_json`.

    program: the branch for this node count.  stored, gathered: a type a parameter, as its shard is stored and as it is delivered.
    groups: names of the groups that have this plan; they are not in what is hashed.
    Raises V402 where the arena or the layout does not fit, or a strided run does not advance evenly.
    """

    collective: Collective
    nodes: int
    lowering: Lowering
    program: Program
    layout: GroupLayout
    stored: tuple[Dtype, ...]
    gathered: tuple[Dtype, ...]
    groups: tuple[str, ...] = ()
    slices: SubSlices = field(init=False, repr=False)
    arena: Arena = field(init=False, repr=False)
    _walk: Walk = field(init=False, repr=False)

    def __post_init__(self) -> None:
        assert self.layout.ranks == self.nodes * self.lanes and len(self.layout.params) == len(self.stored) == len(self.gathered)
        sizes = dict(nodes=self.nodes, num_parts=self.num_parts, grad_item_bytes=self.grad_item_bytes, has_cast=self.has_cast)
        object.__setattr__(self, "slices", self.layout.sub_slices(self.num_parts, self.lanes))
        object.__setattr__(self, "arena", lay_arena(self.program, self.layout, **sizes))
        object.__setattr__(self, "_walk", Walk(self))

    @property
    def schedule(self) -> str:
        """The schedule's name."""
        return self.program.name

    @property
    def lanes(self) -> int:
        """L."""
        return self.program.lanes

    @property
    def ranks(self) -> int:
        """N = M*L."""
        return self.nodes * self.lanes

    @property
    def knobs(self) -> tuple[tuple[str, int | str], ...]:
        """The schedule's arguments, by name."""
        return self.program.knobs

    @property
    def num_parts(self) -> int:
        """Passes a call; 1 in an all-gather."""
        return int(dict(self.knobs).get("n_part", 1))

    @property
    def has_cast(self) -> bool:
        """Whether the all-gather casts the resident shard into its stage."""
        return bool(dict(self.knobs).get("cast", False))

    @property
    def gradient_dtype(self) -> Dtype:
        """What gradients are in: one type, that of the trainable parameters. Only of a reduce-scatter."""
        (dtype,) = {d for d, p in zip(self.gathered, self.layout.params) if p.is_trainable}
        return dtype

    @property
    def grad_item_bytes(self) -> int:
        """Bytes of a gradient's value; 0 in an all-gather, which has none."""
        return self.gradient_dtype.item_bytes if self.collective is Collective.REDUCE_SCATTER else 0

    @property
    def premises_hold(self) -> bool:
        """Whether the schedule's premises on M hold for this node count."""
        return all(evaluate(p, {"M": self.nodes}) for p in self.program.premises)

    def steps(self, rank: int, call: int = 0) -> Iterator[Step]:
        """The steps of a rank in a call, in position order: the order in which the host issues them, over all streams.

        rank: node-major, 0 <= r < N.  call: e >= 0.
        Raises P102 where one is out of range; V102 with the op's line where an access lies outside its buffer.
        """
        if not 0 <= rank < self.ranks or call < 0:
            raise TidecError(Diagnostic("P102", f"rank {rank} in call {call} is outside 0..{self.ranks - 1} and calls from 0", help="ranks are numbered n*L + j"))
        return self._walk.steps(*divmod(rank, self.lanes), call)
