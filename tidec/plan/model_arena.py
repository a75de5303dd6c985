"""The arena of a model: one range of memory for all groups, with every landing and every stage named, and who shares it.

S bytes a shard, N ranks. Regions, each at a multiple of 512 bytes:

    landing.i       a landing of N*S bytes, for the groups of a slot (`slots.py`)
    shard           where a rank's shard stands while it is gathered; none where plans cast, which pack into the stage
    gather_stage    what all-gathers receive from other nodes before it is placed
    reduce_stage.i  all that a reduce-scatter needs: staging, outbox, spares, inbox

Shards and stages are as large as the largest plan that has them. What makes sharing them safe:

- A rank's all-gathers are issued in one order. Others write into its stage only after its credits, and it gives those of a call after its own scatter and its
  own sends of the call before; across plans these are the same two waits, for the rank's call before over the stage, whichever plan that had. Nobody else's
  progress is needed. The same holds for `shard`, which only its rank reads: a call packs it when the call before is through with it.
- A reduce-scatter's waits name calls e - 1 and e - 2 of its own plan, told by other ranks: of another plan's call in the same memory they say nothing, and a call
  reads while the call before is still on the network. So at each change of plan in a region a fence is needed: a rank begins there when all ranks have ended the
  plan's last call, with the inbox set to zero again. Plans share a region only where fences are few: at most one in FENCE_EVERY of its calls. Plans whose calls
  alternate, as those of dense and of expert groups, keep regions apart. Calls of one plan need no fence: that is what is proved of it.

An arena is planned, and its plans are those that are proved; a program that runs it has to add the waits across plans that are said here.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.ask import Collective, Mode
from tidec.inputs.document import MAX_INT64
from tidec.inputs.order import Moment, Order
from tidec.plan.arena import ALIGNMENT_BYTES, RESIDENT_SHARD, Arena, Region, check_arena
from tidec.plan.ir import Plan
from tidec.plan.slots import Slot, assign_slots

FENCE_EVERY = 4


class Use(Enum):
    """What a region is for."""

    LANDING = "landing"
    SHARD = "shard"
    GATHER_STAGE = "gather_stage"
    REDUCE_STAGE = "reduce_stage"


@dataclass(frozen=True, slots=True)
class Need:
    """What the plans of one group need, in bytes; 0 = nothing, as where a collective has no plan.

    shard_bytes: of the region that the all-gather reads.  gather_stage_bytes, reduce_stage_bytes: of all temporary buffers, padding between them counted.
    reduce_plan: the digest of its reduce-scatter's plan, "" where it has none: groups that have one plan share its stage without a fence.
    """

    landing_bytes: int = 0
    shard_bytes: int = 0
    gather_stage_bytes: int = 0
    reduce_stage_bytes: int = 0
    reduce_plan: str = ""


@dataclass(frozen=True, slots=True)
class ModelRegion:
    """groups: those that use it, by index in the order, rising.  fences: in a step, one at each change of the plan that uses it."""

    name: str
    use: Use
    offset: int
    bytes: int
    groups: tuple[int, ...]
    fences: int = 0


@dataclass(frozen=True, slots=True)
class ModelArena:
    """All regions, by offset. bytes: the end of the last one, rounded up to the alignment."""

    order: Order
    mode: Mode
    regions: tuple[ModelRegion, ...]
    bytes: int

    def bytes_of(self, use: Use) -> int:
        """Bytes of all regions of a use."""
        return sum(r.bytes for r in self.regions if r.use is use)


def need_of(*plans: Plan | None) -> Need:
    """What a group needs for its plans, at most one a collective; `None` = that collective has none."""
    found: dict[str, object] = {}
    for plan in plans:
        if plan is None:
            continue
        staging = [r for r in plan.arena.regions if r.is_staging]
        stage_bytes = plan.arena.bytes - staging[0].offset if staging else 0
        if plan.collective is Collective.ALL_GATHER:
            found |= dict(landing_bytes=plan.layout.landing_bytes, gather_stage_bytes=stage_bytes,
                          shard_bytes=sum(r.bytes for r in plan.arena.regions if r.name == RESIDENT_SHARD))
        else:
            found |= dict(reduce_stage_bytes=stage_bytes, reduce_plan=plan.digest)
    return Need(**found)  # type: ignore[arg-type]


def lay_model_arena(order: Order, needs: Sequence[Need], *, mode: Mode) -> ModelArena:
    """The arena of a model whose groups need so much, used in this order.

    needs: one an entry of the group file.
    Guaranteed: regions are aligned and disjoint, and groups that live at the same time have different landings.
    Raises P002 as `assign_slots`, P005 where an offset would not fit 64 bits.
    """
    of_group = [needs[c.entry] for c in order.groups]
    regions: list[ModelRegion] = []

    def place(name: str, use: Use, size: int, groups: Sequence[int], fences: int = 0) -> None:
        start = _round_up(regions[-1].offset + regions[-1].bytes) if regions else 0
        regions.append(ModelRegion(name, use, start, size, tuple(groups), fences))

    for i, slot in enumerate(assign_slots(order, [n.landing_bytes for n in of_group], mode=mode)):
        place(f"{Use.LANDING.value}.{i}", Use.LANDING, slot.bytes, slot.groups)
    for use, sizes in ((Use.SHARD, [n.shard_bytes for n in of_group]), (Use.GATHER_STAGE, [n.gather_stage_bytes for n in of_group])):
        if any(sizes):
            place(use.value, use, max(sizes), [g for g, size in enumerate(sizes) if size])
    for i, (stage, fences) in enumerate(_share_stages(order, of_group)):
        place(f"{Use.REDUCE_STAGE.value}.{i}", Use.REDUCE_STAGE, stage.bytes, stage.groups, fences)
    arena = ModelArena(order, mode, tuple(regions), _round_up(regions[-1].offset + regions[-1].bytes) if regions else 0)
    if arena.bytes > MAX_INT64:
        raise TidecError(Diagnostic("P005", f"the arena of the model would be {arena.bytes:,} bytes, more than an offset of 64 bits reaches",
                                    reason=f"its largest region is {max(regions, key=lambda r: r.bytes).name}", help="shard smaller groups"))
    return arena


def _share_stages(order: Order, needs: Sequence[Need]) -> tuple[tuple[Slot, int], ...]:
    """Regions for the temporary buffers of reduce-scatters: (groups and bytes, fences in a step).

    Plans in the order of their first call take the region that grows least by them, of those in which fences stay few, or else a new one. A plan that the
    order does not call is placed as if it were called once at the end.
    """
    calls = [g for g in (e.group for e in order.events if e.moment is Moment.REDUCE) if needs[g].reduce_plan]
    called = {needs[g].reduce_plan for g in calls}
    for g, need in enumerate(needs):
        if need.reduce_plan and need.reduce_plan not in called:
            calls.append(g)
            called.add(need.reduce_plan)
    size = {n.reduce_plan: n.reduce_stage_bytes for n in needs}
    num_calls = Counter(needs[g].reduce_plan for g in calls)
    regions: list[list[str]] = []
    for plan in dict.fromkeys(needs[g].reduce_plan for g in calls):
        if not size[plan]:
            continue

        def growth(region: list[str]) -> int:
            return max(0, size[plan] - max(size[p] for p in region))

        def is_calm(plans: Sequence[str]) -> bool:
            # Several plans change at least once for each of them, which most regions of a model of many plans fail by already.
            if FENCE_EVERY * len(plans) > sum(num_calls[p] for p in plans):
                return False
            fences, count = _num_fences(calls, needs, plans)
            return FENCE_EVERY * fences <= count

        fit = [r for r in regions if is_calm((*r, plan))]
        if fit:
            min(fit, key=growth).append(plan)
        else:
            regions.append([plan])
    slots = (Slot(tuple(g for g, n in enumerate(needs) if n.reduce_plan in region), max(size[p] for p in region)) for region in regions)
    return tuple((slot, _num_fences(calls, needs, region)[0]) for slot, region in zip(slots, regions))


def _num_fences(calls: Sequence[int], needs: Sequence[Need], plans: Sequence[str]) -> tuple[int, int]:
    """(fences, calls) of a step in a region that these plans share: changes of plan from a call to the next, round the end of the step too."""
    used = [p for p in (needs[g].reduce_plan for g in calls) if p in plans]
    return sum(a != b for a, b in zip(used, (*used[1:], *used[:1]))), len(used)


def check_model_arena(arena: ModelArena) -> None:
    """Check that regions are aligned, disjoint, inside the arena, and that no name is there twice, as `check_arena` does for a plan. Raises V402."""
    check_arena(Arena(tuple(Region(r.name, r.use.value, r.offset, r.bytes, r.use is not Use.LANDING, (), (), ()) for r in arena.regions), arena.bytes))


def _round_up(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
