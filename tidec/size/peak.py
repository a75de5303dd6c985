"""How much memory a rank holds for parameters and their gradients: during a layer's backward, and at most over a step.

N ranks, S bytes a shard of a group. Four systems: stock FSDP2, FSDP2 with symmetric memory, and tidec in its two modes.

Counted, in bytes of one rank: shards as they are stored; what is unsharded, N*S a group from its all-gather's issue to its reshard (first a gather buffer, then
parameters); gradients as autograd makes them, whole at the end of their group's backward; what stock packs for a reduce-scatter, N*E values of reduce_dtype,
which it keeps until the next one; and an arena, whole for the whole step. Under tidec a group whose collective has no plan is counted as stock's.
Left out, being the job's own and the same for all: reduced gradients, optimizer state, activations, workspaces, communicators.
Stock's numbers are lower bounds: the copy out of a gather buffer, which needs both, is not counted, nor is what an allocator keeps or loses in pieces.
Source: paper sections 2.1, 5.4 and 7.2; FSDP2's _fsdp_collectives.py and _fsdp_param_group.py.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from tidec.inputs.ask import Collective, Mode, stock_cause
from tidec.inputs.contract import rows_per_rank
from tidec.inputs.order import Event, Moment, Order, ends_of_backward
from tidec.inputs.signature import Group
from tidec.size.memory import staging_share


class System(Enum):
    """Whose memory. SYMMETRIC: stock FSDP2 whose gather buffers and packed gradients lie in a pool of symmetric memory that no other tensor shares."""

    STOCK = "stock"
    SYMMETRIC = "stock_symmetric"
    IN_PLACE = "in_place"
    SLOT_REUSE = "slot_reuse"

    @property
    def is_tidec(self) -> bool:
        return self in (System.IN_PLACE, System.SLOT_REUSE)


def system_of(mode: Mode) -> System:
    """tidec in that mode."""
    return System.IN_PLACE if mode is Mode.IN_PLACE else System.SLOT_REUSE


@dataclass(frozen=True, slots=True)
class Held:
    """What one group holds, in bytes of a rank.

    shard_bytes: as stored.  landing_bytes: N*S, unsharded.  gradient_bytes: of unsharded gradients.  pack_bytes: what stock packs to reduce them.
    has_gather, has_reduce: whether tidec has a plan for its collectives.
    """

    shard_bytes: int
    landing_bytes: int
    gradient_bytes: int
    pack_bytes: int
    has_gather: bool = True
    has_reduce: bool = True


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment of a step in which a rank holds most, in bytes by what it holds. For SYMMETRIC unsharded and packed are the pool's share at its own peak."""

    shards: int
    unsharded: int
    gradients: int
    packed: int
    arena: int

    @property
    def total(self) -> int:
        return self.shards + self.unsharded + self.gradients + self.packed + self.arena


def held_by(group: Group, *, ranks: int) -> Held:
    """What a group that all N ranks share holds. ranks: N."""
    shard_elems = [rows_per_rank(p.rows, ranks) * p.row_elems for p in group.params]
    return Held(
        sum(n * p.dtype.item_bytes for n, p in zip(shard_elems, group.params)),
        ranks * sum(n * group.gathered_as(p).item_bytes for n, p in zip(shard_elems, group.params)),
        sum(p.elems * group.gathered_as(p).item_bytes for p in group.trainable),
        ranks * sum(n for n, p in zip(shard_elems, group.params) if p.requires_grad) * group.reduce_dtype.item_bytes,
        stock_cause(group, Collective.ALL_GATHER) is None, stock_cause(group, Collective.REDUCE_SCATTER) is None,
    )


def backward_share(system: System, *, nodes: int, k: int = 4, generations: int = 2) -> Fraction:
    """The bound on live bytes during a layer's backward as a share of N*S: eight lanes, bf16, one pass, its own gradients and shards not counted.

    Stock: the layer's parameters, the prefetched gather buffer and the fp32 pack of the layer before, 1 + 1 + 2. tidec: two landings and the receive stage,
    2 + 1/L, the reduce-scatter's staging, and in place the gradients of the layer before.  nodes: M.  k: transfers a round.  generations: n_par.
    Source: paper section 5.4.
    """
    if not system.is_tidec:
        return Fraction(4)
    mode = Mode.IN_PLACE if system is System.IN_PLACE else Mode.SLOT_REUSE
    return 2 + Fraction(1, 8) + staging_share(mode, nodes=nodes, k=k, generations=generations) + (mode is Mode.IN_PLACE)


def backward_bytes(system: System, held: Held, *, gather_stage_bytes: int, reduce_stage_bytes: int) -> int:
    """Live bytes during the backward of one of many equal layers, counted as `backward_share` counts, with the stages of its plans."""
    if not system.is_tidec:
        return 2 * held.landing_bytes + held.pack_bytes
    return 2 * held.landing_bytes + gather_stage_bytes + reduce_stage_bytes + (held.gradient_bytes if system is System.IN_PLACE else 0)


def peak(order: Order, held: Sequence[Held], system: System, *, arena_bytes: int = 0) -> Peak:
    """The most that a rank holds at once in a step of that order.

    held: one an entry of the group file.  arena_bytes: of the model's arena in that mode; 0 for stock.
    """
    assert system.is_tidec or not arena_bytes
    walk = _Walk(order, [held[c.entry] for c in order.groups], system)
    for at, event in enumerate(order.events):
        walk.step(at, event)
    shards = sum(held[c.entry].shard_bytes for c in order.groups)
    return Peak(shards, *walk.most, arena_bytes)


class _Walk:
    """What is live, event after event, and the most of it so far: (unsharded, gradients, packed)."""

    def __init__(self, order: Order, held: Sequence[Held], system: System):
        self._held, self._system = held, system
        self._ends = ends_of_backward(order)
        self._unsharded: set[int] = set()
        self._buffers: set[int] = set()                     # of the unsharded ones, those that still lie in gather buffers
        self._gradients: dict[int, bool] = {}               # group -> whether only its reduce-scatter still needs them
        self._packed: int | None = None
        self._pool = self._rest = (0, 0, 0)
        self._most = (0, 0, 0)

    @property
    def most(self) -> tuple[int, int, int]:
        if self._system is not System.SYMMETRIC:
            return self._most
        return tuple(a + b for a, b in zip(self._pool, self._rest))  # type: ignore[return-value]

    def step(self, at: int, event: Event) -> None:
        g = event.group
        if event.moment is Moment.UNSHARD:
            self._buffers = {g}                             # the ones before have been copied out by then
            self._unsharded.add(g)
        elif event.moment is Moment.RESHARD:
            if at in self._ends:
                self._make_gradients(g)
            self._unsharded.discard(g)
            self._buffers.discard(g)
        elif event.moment is Moment.REDUCE:
            self._make_gradients(g)
            self._reduce(g, lies_in_landing=g not in self._unsharded and self._has_gather(g))
        self._note()

    def _make_gradients(self, g: int) -> None:
        self._gradients[g] = False
        self._note()

    def _reduce(self, g: int, *, lies_in_landing: bool) -> None:
        """FSDP2 lets go what the reduce-scatter before needed, and takes what this one needs beside its gradients."""
        self._packed = None
        self._gradients = {other: waits for other, waits in self._gradients.items() if not waits}
        if not (self._system.is_tidec and self._held[g].has_reduce):
            self._packed = g
            self._note()
            del self._gradients[g]
        elif self._system is System.SLOT_REUSE and lies_in_landing:
            del self._gradients[g]
        else:
            self._gradients[g] = True

    def _has_gather(self, g: int) -> bool:
        return self._system.is_tidec and self._held[g].has_gather

    def _note(self) -> None:
        def landed(groups: set[int]) -> int:
            return sum(self._held[g].landing_bytes for g in groups if not self._has_gather(g))

        gradients = sum(self._held[g].gradient_bytes for g in self._gradients)
        packed = 0 if self._packed is None else self._held[self._packed].pack_bytes
        now = (landed(self._unsharded), gradients, packed)
        self._most = max(self._most, now, key=sum)
        self._pool = max(self._pool, (landed(self._buffers), 0, packed), key=sum)
        self._rest = max(self._rest, (landed(self._unsharded - self._buffers), gradients, 0), key=sum)

