"""What is planned: one collective of one group on M nodes of L lanes, folded, with every byte placed.

M nodes, L lanes, N = M*L ranks. A `Plan` is a branch of a schedule's program (M = 1, or M >= 2 with M still a symbol in it) with the
numbers that make it concrete: the node count, the layout and the arena. Its canonical JSON is what is stored, hashed and shipped, and
`plan_from_json` (`stored.py`) reads it back.
"""
from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidec.errors import Diagnostic, TidecError
from tidec.index import evaluate
from tidec.inputs.ask import Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.signature import Dtype
from tidec.plan.arena import LANDING, Arena, lay_arena, stored_starts
from tidec.plan.edges import wait_edges
from tidec.plan.layout import GroupLayout, SubSlices
from tidec.plan.shapes import check_program
from tidec.plan.steps import Step
from tidec.plan.walk import Walk
from tidec.schedule.program import Program, digest, jsonable

SCHEMA = "tidec.plan/1"


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One collective of one group; built by `lower`, or read back by `plan_from_json`.

    program: the branch for this node count.  stored, gathered: a type a parameter, as its shard is stored and as it is delivered.
    groups: names of the groups that have this plan; they are not in what is hashed.
    Raises V105 and V402 with the line of what no plan carries out: see `check_program`.
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
    _json: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        assert self.layout.ranks == self.nodes * self.lanes and len(self.layout.params) == len(self.stored) == len(self.gathered)
        check_program(self.program)
        sizes = dict(nodes=self.nodes, num_parts=self.num_parts, grad_item_bytes=self.grad_item_bytes, has_cast=self.has_cast, num_chunks=self.num_chunks)
        object.__setattr__(self, "slices", self.layout.sub_slices(self.num_parts, self.lanes, self.num_chunks, self.stripes))
        object.__setattr__(self, "arena", lay_arena(self.program, self.layout, **sizes))
        object.__setattr__(self, "_walk", Walk(self))
        object.__setattr__(self, "_json", _canonical(self))

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
    def num_chunks(self) -> int:
        """Chunks of a sub-slice, a multiple of the stripes; 1 in an all-gather."""
        return int(dict(self.knobs).get("chunks", 1))

    @property
    def stripes(self) -> int:
        """Puts that carry a block, each over an RMA context of its own."""
        return int(dict(self.knobs).get("stripes", 1))

    @property
    def landings(self) -> int:
        """Calls of an all-gather whose parameters may be there at a time; 0 in a reduce-scatter."""
        return next((r.extents[0] for r in self.arena.regions if r.name == LANDING), 0)

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

    @property
    def program_digest(self) -> str:
        """sha256 of the program's branch, the same for every node count of the branch and every group."""
        return digest(self.program)

    def to_json(self) -> str:
        """Canonical JSON of the folded plan (schema `tidec.plan/1`): ASCII, sorted keys, no floats, no paths of a machine.

        Everything that is needed to run and to re-check the plan without the schedule's source. Names of groups are not in it.
        """
        return self._json

    @property
    def digest(self) -> str:
        """sha256 of `to_json`, 64 hex digits. Groups that differ in name and repeat have equal digests."""
        return hashlib.sha256(self._json.encode("ascii")).hexdigest()

    def steps(self, rank: int, call: int = 0) -> Iterator[Step]:
        """The steps of a rank in a call, in position order: the order in which the host issues them, over all streams.

        rank: node-major, 0 <= r < N.  call: e >= 0.
        Raises P102 where one is out of range; V102 with the op's line where an access lies outside its buffer.
        """
        if not 0 <= rank < self.ranks or call < 0:
            raise TidecError(Diagnostic("P102", f"rank {rank} in call {call} is outside 0..{self.ranks - 1} and calls from 0", help="ranks are numbered n*L + j"))
        return self._walk.steps(*divmod(rank, self.lanes), call)


def _canonical(plan: Plan) -> str:
    starts = stored_starts(plan.layout, plan.stored)
    params = [
        {
            "name": p.name, "rows": p.rows, "row_elems": p.row_elems, "is_trainable": p.is_trainable, "stored": stored.value, "gathered": gathered.value,
            "shard_rows": p.shard_rows, "shard_elems": p.shard_elems, "shard_bytes": p.shard_bytes, "start_bytes": p.start_bytes,
            "packed_start": p.packed_start, "stored_start": start,
        }
        for p, stored, gathered, start in zip(plan.layout.params, plan.stored, plan.gathered, starts)
    ]
    parts = [[list(plan.slices.bounds(part, s)) for s in range(plan.lanes)] for part in range(plan.num_parts)]
    content = {
        "schema": SCHEMA, "collective": plan.collective.value, "nodes": plan.nodes, "lanes": plan.lanes, "lowering": plan.lowering.value,
        "program": jsonable(plan.program), "waits": jsonable(wait_edges(plan.program)), "params": params, "shard_bytes": plan.layout.shard_bytes,
        "packed_elems": plan.layout.packed_elems, "sub_slices": {"capacity_elems": plan.slices.capacity_elems, "num_chunks": plan.slices.num_chunks, "chunk_elems": plan.slices.chunk_elems, "bounds": parts}, "arena": jsonable(plan.arena),
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
