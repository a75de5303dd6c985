"""Which numbers a group's plans get: every knob that was not set, chosen from rates and memory, and which term decided it.

M nodes, L lanes, W wave width, k transfers of a round, E elements of a rank's packed output, b bytes of a gradient's value.
S_fp32 = 4*L*E_sub: the output shard in fp32, with E_sub rounded up to whole chunks, as in n_part blocks. All arithmetic is exact, so that ranks and machines agree.
Source: paper section 6.3 and appendix G.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor

from tidec.errors import bytes_text
from tidec.inputs.ask import Collective, Mode, stock_cause
from tidec.inputs.contract import rows_per_rank
from tidec.inputs.knobs import FULL, MAX_PARTS, NOTHING_SET, Full, Knobs, Settings, default_knobs
from tidec.inputs.signature import Group
from tidec.inputs.topology import Topology
from tidec.size.memory import FP32_BYTES, outbox_depth, reduce_block_bytes, reduce_staging_bytes
from tidec.size.rates import Rates, rates_of

MAX_SHARDS = 21
SMALL_BYTES = 64 * 2**20
MANY_CHUNKS = 4
PROVED_LANES = (1, 2, 4, 8)
# On one node: staging slots by the chunks of a block. A call uses no more slots than it has chunks; to eight chunks a fourth slot brought half a percent
# (16 CTAs, two H200s: examples/measure/results/pair.json).
_ALONE_SLOTS = {1: 1, 2: 2, 4: 4, 8: 3}
_FEW_SLOTS = 2
_OTHER_CLASS = "no proof is shipped of what is set with"
_MAX_ROUND = 4
_WAIT_SHARE, _TAIL_SHARE, _SKEW, _MEETING_SHARE = Fraction(1, 10), Fraction(1, 20), Fraction(3, 2), Fraction(1, 5)
_GB, _US, _HUGE = 10**9, 10**6, 10**300


@dataclass(frozen=True, slots=True)
class Term:
    """What decided one knob. value: as `--set` takes it.  why: words that go on from it.  is_set: whether the user did."""

    name: str
    value: str
    why: str
    is_set: bool

    def __str__(self) -> str:
        return f"{self.name} = {self.value}: {self.why}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The knobs of a group and what decided each, in the order in which they were decided; no terms where nothing did."""

    knobs: Knobs
    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Class:
    """What the text of a reduce-scatter depends on; all else of it is at its default. chunks: of a block, at least one."""

    lanes: int
    W: int
    k: int
    n_part: int
    n_out: int | Full
    chunks: int
    n_stg: int


@dataclass(frozen=True, slots=True)
class _Case:
    """What is decided on."""

    topology: Topology
    rates: Rates
    packed_elems: int
    grad_item_bytes: int
    mode: Mode
    budget_bytes: int | None
    settings: Settings

    @property
    def is_alone(self) -> bool:
        return self.topology.nodes == 1

    @property
    def wire_us(self) -> Fraction:
        """t_NIC: (M-1)*S_fp32 over a rail. Source: paper appendix G."""
        return _us((self.topology.nodes - 1) * self.shard_bytes(Knobs(1, 1)), self.rates.nic_gbps.value)

    def block_bytes(self, knobs: Knobs) -> int:
        return reduce_block_bytes(self.packed_elems, lanes=self.topology.lanes, knobs=knobs, grad_item_bytes=self.grad_item_bytes)

    def shard_bytes(self, knobs: Knobs) -> int:
        """S_fp32."""
        return knobs.n_part * self.block_bytes(knobs)

    def staging_bytes(self, knobs: Knobs) -> int:
        return reduce_staging_bytes(
            self.packed_elems, nodes=self.topology.nodes, lanes=self.topology.lanes, knobs=knobs, grad_item_bytes=self.grad_item_bytes)


def choose(topology: Topology, group: Group, *, mode: Mode = Mode.IN_PLACE, budget_bytes: int | None = None, settings: Settings = NOTHING_SET) -> Choice:
    """`solve` for a group; one that keeps the stock reduce-scatter has the knobs of the smallest one that does not, and nothing that decided them. Raises P006."""
    if stock_cause(group, Collective.REDUCE_SCATTER) is not None:
        return Choice(solve(topology, packed_elems=1, grad_item_bytes=2, mode=mode, budget_bytes=budget_bytes, settings=settings).knobs, ())
    elems = sum(rows_per_rank(p.rows, topology.ranks) * p.row_elems for p in group.trainable)
    return solve(topology, packed_elems=elems, grad_item_bytes=group.gradient_dtype.item_bytes, mode=mode, budget_bytes=budget_bytes, settings=settings)


def solve(
    topology: Topology, *, packed_elems: int, grad_item_bytes: int, mode: Mode = Mode.IN_PLACE, budget_bytes: int | None = None, settings: Settings = NOTHING_SET,
) -> Choice:
    """The knobs of one group.

    packed_elems: E >= 1, of a rank's packed output.  grad_item_bytes: b, 2 or 4.
    budget_bytes: what the staging of a reduce-scatter may take; `None` = no budget was stated.
    settings: what the user set, which is kept.
    Guaranteed: equal arguments give equal choices on every machine; where nothing is set and the topology has 1, 2, 4 or 8 lanes, the choice lies in `classes()`.
    Raises P006 where what is set cuts blocks into too many chunks.
    """
    assert packed_elems >= 1 and grad_item_bytes in (2, 4), (packed_elems, grad_item_bytes)
    case = _Case(topology, rates_of(topology), packed_elems, grad_item_bytes, mode, budget_bytes, settings)
    knobs = settings.over(default_knobs(topology.lanes))
    terms: list[Term] = []

    def take(name: str, value: int | Full, why: str) -> None:
        nonlocal knobs
        is_set = name in settings
        knobs = knobs if is_set else replace(knobs, **{name: value})
        terms.append(Term(name, _spelt(name, getattr(knobs, name)), "set" if is_set else why, is_set))

    take("W", topology.lanes, "the widest wave, one contributor a lane")
    take("k", *_round(case, knobs.W))
    take("stripes", knobs.stripes, "more is not measured yet")
    parts, why = _parts(case, knobs)
    knobs = parts
    take("n_part", knobs.n_part, why)
    take("n_out", knobs.n_out, _outbox_why(case, knobs))
    if "chunk_bytes" in settings:
        take("chunk_bytes", 0, "")
    else:
        take("chunks", knobs.chunks, _chunks_why(case, knobs))
    take("n_stg", knobs.n_stg, _slots_why(case, knobs))
    take("ctas_sum", *_sum_ctas(case))
    take("ctas_land", *_land_ctas(case, knobs))
    return Choice(knobs, tuple(terms))


def classes() -> tuple[Class, ...]:
    """Every class of reduce-scatters that the solver can choose at 1, 2, 4 or 8 lanes, whatever the nodes, the rates, the group, the mode and the budget.

    A wave is as wide as a node. Two rounds together are at most 2*k transfers; with one pass they are either that or all that there are. One node has as
    many chunks as suits its pushes, and slots that suit them or two; several have one chunk or four, and with more than one pass four, but one where nothing
    is pushed (one lane).
    """
    return tuple(
        Class(lanes, lanes, k, num_parts, n_out, chunks, n_stg)
        for lanes in PROVED_LANES for k in (1, 2, _MAX_ROUND) if k <= lanes for num_parts in range(1, MAX_PARTS + 1) for n_out in _outboxes(lanes, k, num_parts)
        for chunks, n_stg in _stagings(lanes, k, num_parts, n_out))


def _outboxes(lanes: int, k: int, num_parts: int) -> tuple[int | Full, ...]:
    if k == 1:
        # With more lanes than one k is 1 on two nodes only: a pass is one round of one transfer.
        return (FULL, 2) if lanes == 1 or num_parts > 2 else (FULL,)
    return (FULL, *((2 * k,) if num_parts == 1 else range(k + 1, 2 * k + 1)))


def _stagings(lanes: int, k: int, num_parts: int, n_out: int | Full) -> list[tuple[int, int]]:
    """Chunks, and slots for them."""
    one, four = (1, _FEW_SLOTS), (MANY_CHUNKS, _FEW_SLOTS)
    if lanes == 1:
        return [one]
    if num_parts > 1:
        return [four]
    of_one_node = _ALONE_SLOTS if n_out is FULL and k == min(lanes, _MAX_ROUND) else {}
    return sorted({one, four, *of_one_node.items(), *((chunks, _FEW_SLOTS) for chunks, slots in of_one_node.items() if slots > _FEW_SLOTS)})


def num_rounds(nodes: int, width: int, k: int) -> int:
    """N_rounds: network rounds of a pass, none of which crosses a wave. Source: paper section 4.2, appendix G."""
    full, rest = divmod(nodes - 1, width)
    return full * ceil(Fraction(width, k)) + ceil(Fraction(rest, k))


def _round(case: _Case, width: int) -> tuple[int, str]:
    """k. Source: paper appendix G."""
    nodes, wait, wire = case.topology.nodes, case.rates.wait_us.value, case.wire_us
    if case.is_alone:
        return min(_MAX_ROUND, width), "nothing is sent on one node"
    limit = next((x for name, x in case.settings.values if name == "n_out" and isinstance(x, int)), _MAX_ROUND)
    k = min(2, nodes - 1, width)
    why = "a wave has no more" if k == width else "there is one other node" if k == nodes - 1 == 1 else "there are two other nodes"
    while k < min(_MAX_ROUND, width):
        rounds, fewer = num_rounds(nodes, width, k), num_rounds(nodes, width, min(2 * k, width))
        spent = f"{_counted(rounds, 'round')} of {_time(wait)} with k = {k}"
        if rounds * wait <= _WAIT_SHARE * wire:
            why = f"{spent} are {_share(rounds * wait, wire)} the {_time(wire)} on the wire"
            break
        if fewer == rounds:
            why = "there is one other node" if nodes == 2 else f"a larger one makes no fewer rounds than {rounds}"
            break
        k, why = min(2 * k, width), f"{spent} would be {_share(rounds * wait, wire)} the {_time(wire)} on the wire"
    return (k, why) if k <= limit else (limit, f"the outbox that was set has {_counted(limit, 'block')}")


def _parts(case: _Case, knobs: Knobs) -> tuple[Knobs, str]:
    """The knobs with n_part, and the n_out, chunks and n_stg that go with it: the fewest passes whose staging is small enough; and why so many.

    Before another pass is taken, staging has few slots and is cut into small chunks, since a chunk costs a meeting and a pass its rounds.
    """
    if not _has_passes(case, knobs):
        one = _with_outbox(case, replace(knobs, n_part=_numbers(case, is_free=False)[0]))
        return replace(one, n_stg=_slots(case, one)), f"{_OTHER_CLASS} more passes or chunks"
    tried = [one for n in _numbers(case) for one in _cuts(case, _with_outbox(case, replace(knobs, n_part=n)), is_first=n == _numbers(case)[0])]
    sizes = [case.staging_bytes(one) for one in tried]
    shards = [Fraction(size, case.shard_bytes(one)) for one, size in zip(tried, sizes)]
    shown = [f"{bytes_text(size)} of staging, {_number(count)} output shard{'' if count == 1 else 's'}" for size, count in zip(sizes, shards)]
    is_within = [case.budget_bytes is None or size <= case.budget_bytes for size in sizes]
    if is_within[0] and sizes[0] <= SMALL_BYTES:
        return tried[0], f"{shown[0]}; up to {bytes_text(SMALL_BYTES)} no memory is worth another pass"
    for one, is_small, count, said in zip(tried, is_within, shards, shown):
        if is_small and count <= MAX_SHARDS:
            before = [number for other, number in zip(tried, shards) if other.n_part < one.n_part]
            return one, f"{said} ({_bound(case)}{f'; with a pass less {_number(min(before))}' if before else ''})"
    # No number of passes is enough, as where a full outbox has a block for each of many nodes: as few as fit the stated budget, or what is least.
    chosen = is_within.index(True) if True in is_within else sizes.index(min(sizes))
    return tried[chosen], f"{shown[chosen]}; with no number of passes {_bound(case)}"


def _bound(case: _Case) -> str:
    return f"at most {MAX_SHARDS}" + ("" if case.budget_bytes is None else f" and the stated {bytes_text(case.budget_bytes)}")


def _has_passes(case: _Case, knobs: Knobs) -> bool:
    """Whether passes and chunks are chosen: with other waves, rounds, slots or stripes than the chosen ones only one pass of whole blocks is a class that is
    shipped as proved, so that a bundle of more could not be re-checked without a solver. The graph of one node is small enough to re-check it by, whatever is set;
    stripes of one node would only say how chunks are counted."""
    if case.is_alone:
        return knobs.stripes == 1
    is_usual = "n_stg" not in case.settings or knobs.n_stg == _FEW_SLOTS
    return is_usual and (knobs.W, knobs.stripes) == (case.topology.lanes, 1) and knobs.k in (1, 2, min(_MAX_ROUND, knobs.W))


def _numbers(case: _Case, *, is_free: bool = True) -> range:
    """The pass counts that may be chosen. is_free: more than one may be."""
    given = dict(case.settings.values).get("n_part")
    return range(1, (MAX_PARTS if is_free else 1) + 1) if given is None else range(int(given), int(given) + 1)


def _with_outbox(case: _Case, knobs: Knobs) -> Knobs:
    """The knobs with the outbox of the mode. Source: paper section 5.3, eq. 9."""
    if "n_out" in case.settings:
        return knobs
    depth = outbox_depth(case.topology.nodes, knobs.W, knobs.k, knobs.n_part)
    is_partial = case.mode is Mode.SLOT_REUSE and depth < knobs.n_part * (case.topology.nodes - 1)
    return replace(knobs, n_out=depth if is_partial else FULL)


def _outbox_why(case: _Case, knobs: Knobs) -> str:
    if case.is_alone:
        return "nothing is sent on one node"
    if case.mode is Mode.IN_PLACE:
        return "gradients in place are read without waiting for the rail"
    return "two rounds that follow each other (eq. 9)" if isinstance(knobs.n_out, int) else "two rounds that follow each other need it all (eq. 9)"


def _cuts(case: _Case, knobs: Knobs, *, is_first: bool) -> Iterator[Knobs]:
    """The knobs with the chunks that rates choose and the slots that suit them, where they are of the first pass count; then with few slots and with small chunks."""
    is_given = "chunks" in case.settings or "chunk_bytes" in case.settings or case.topology.lanes == 1
    first = knobs.chunks if is_given else _chunks(case, knobs)
    if is_first or is_given:
        one = replace(knobs, chunks=first)
        slots = _slots(case, one)
        yield replace(one, n_stg=slots)
        if slots > _FEW_SLOTS and "n_stg" not in case.settings:
            yield replace(one, n_stg=_FEW_SLOTS)
    if not is_given and (not is_first or first < MANY_CHUNKS):
        yield replace(knobs, chunks=MANY_CHUNKS, n_stg=knobs.n_stg if "n_stg" in case.settings else _FEW_SLOTS)


def _slots(case: _Case, knobs: Knobs) -> int:
    """n_stg where memory is no question."""
    if "n_stg" in case.settings:
        return knobs.n_stg
    is_usual = case.is_alone and case.topology.lanes > 1 and (knobs.n_part, knobs.stripes, knobs.chunk_bytes) == (1, 1, 0)
    return _ALONE_SLOTS.get(max(1, knobs.chunks), _FEW_SLOTS) if is_usual else _FEW_SLOTS


def _slots_why(case: _Case, knobs: Knobs) -> str:
    if case.topology.lanes == 1:
        return "nothing is pushed where a node has one lane"
    if not case.is_alone:
        return "more slots bring little (measured on a pair of H200s)"
    count, wanted = max(1, knobs.chunks), _slots(case, knobs)
    if wanted > knobs.n_stg:
        more = case.staging_bytes(replace(knobs, n_stg=wanted))
        return f"small staging costs less than another pass; {wanted} would be {bytes_text(more)} ({_bound(case)})"
    if (knobs.n_part, knobs.stripes, knobs.chunk_bytes) != (1, 1, 0) or count not in _ALONE_SLOTS:
        return f"more are chosen only with one pass of {' or '.join(str(c) for c, slots in _ALONE_SLOTS.items() if slots > _FEW_SLOTS)} chunks"
    if knobs.n_stg == count:
        measured = ", as the fastest measured of 32 MiB a rank (two H200s)" if count > _FEW_SLOTS else ""
        return f"a call has {_counted(count, 'chunk')} and uses no other slot{measured}"
    return f"a fourth slot brought half a percent to {count} chunks (measured on two H200s)"


def _chunks(case: _Case, knobs: Knobs) -> int:
    """0 = one, as it is without any. On one node what takes least beside the sums: the push of the first chunk, and a meeting for each; on several the most
    chunks whose meetings take at most a fifth of what a block takes."""
    if case.is_alone:
        best = min(_ALONE_SLOTS, key=lambda c: _beside_us(case, knobs, c))
        return best if best > 1 else 0
    return MANY_CHUNKS if MANY_CHUNKS * case.rates.meeting_us.value <= _MEETING_SHARE * _block_us(case, knobs) else 0


def _beside_us(case: _Case, knobs: Knobs, chunks: int) -> Fraction:
    return _block_us(case, knobs) / chunks + chunks * case.rates.meeting_us.value


def _block_us(case: _Case, knobs: Knobs) -> Fraction:
    """What one node-local sum has time for: its gradients are pushed, and the sum before it is on the wire."""
    block, lanes = case.block_bytes(replace(knobs, chunks=0, chunk_bytes=0)), case.topology.lanes
    pushed = _us(Fraction((lanes - 1) * block * case.grad_item_bytes, FP32_BYTES), case.rates.push_gbps.value)
    return pushed if case.is_alone else max(pushed, _us(block, case.rates.nic_gbps.value))


def _chunks_why(case: _Case, knobs: Knobs) -> str:
    if case.topology.lanes == 1:
        return "nothing is pushed where a node has one lane"
    if not _has_passes(case, knobs):
        return f"{_OTHER_CLASS} more"
    block, meeting, count = _block_us(case, knobs), case.rates.meeting_us.value, max(1, knobs.chunks)
    if case.is_alone:
        other = next((c for c in (2 * count, count // 2) if c in _ALONE_SLOTS), count)
        return (f"the first push and {_counted(count, 'meeting')} of {_time(meeting)} take {_time(_beside_us(case, knobs, count))} beside the sums, "
                f"with {other} it would be {_time(_beside_us(case, knobs, other))}")
    if count == 1:
        return f"{MANY_CHUNKS} meetings of {_time(meeting)} would be {_share(MANY_CHUNKS * meeting, block)} a block's {_time(block)}"
    share = f"{count} meetings of {_time(meeting)} are {_share(count * meeting, block)} a block's {_time(block)}"
    return share if count * meeting <= _MEETING_SHARE * block else f"small staging costs less than another pass; {share}"


def _sum_ctas(case: _Case) -> tuple[int, str]:
    """C_sum, at most what a GEMM of one wave leaves. Source: paper eq. 13."""
    nic, rate, spare = case.rates.nic_gbps.value, case.rates.sum_gbps_per_cta.value, case.rates.spare_ctas
    work = Fraction(case.topology.lanes * case.grad_item_bytes, FP32_BYTES) + 1
    wanted = ceil(_SKEW * work * nic / rate)
    link = "the push rate" if case.is_alone else "the rail"
    feeds = f"feed {link} of {_number(nic)} GB/s, {_number(work)} bytes for each of it at {_number(rate)} GB/s a CTA and half as much again (eq. 13)"
    if wanted <= spare:
        return wanted, feeds
    return spare, f"{_counted(wanted, 'CTA')} would {feeds}; a GEMM of one wave leaves {spare} on {int(case.rates.sms.value)} SMs"


def _land_ctas(case: _Case, knobs: Knobs) -> tuple[int, str]:
    """C_mc, at most what a GEMM of one wave leaves. Source: paper eq. 14."""
    if case.is_alone:
        return 1, "nothing lands on one node"
    rate, cap, wire = case.rates.land_gbps_per_cta.value, case.rates.land_cap_gbps.value, case.wire_us
    at_ceiling = max(1, floor(cap / rate))
    tail = ceil(_us(case.block_bytes(replace(knobs, chunks=0, chunk_bytes=0)), rate) / (_TAIL_SHARE * wire))
    count = min(at_ceiling, tail, case.rates.spare_ctas)
    if count == tail:
        return count, f"the last wave lands within {_share(_TAIL_SHARE, Fraction(1))} the {_time(wire)} on the wire (eq. 14)"
    if count == at_ceiling:
        return count, f"{_number(rate)} GB/s a CTA reach the ceiling of {_number(cap)} GB/s (eq. 14)"
    return count, f"a GEMM of one wave leaves {count} on {int(case.rates.sms.value)} SMs"


def _us(bytes: int | Fraction, gbps: Fraction) -> Fraction:
    return bytes * _US / (gbps * _GB)


def _spelt(name: str, value: int | Full) -> str:
    return str(max(1, value)) if name == "chunks" else str(value)


def _counted(count: int, noun: str) -> str:
    return f"{_number(Fraction(count))} {noun}" + ("" if count == 1 else "es" if noun.endswith("s") else "s")


def _share(part: Fraction, whole: Fraction) -> str:
    """As in `12 % of` and `20 times`."""
    return f"{_number(100 * part / whole)} % of" if part < 10 * whole else f"{_number(part / whole)} times"


def _number(x: Fraction) -> str:
    """Three digits that count, or all before the point where they are not too many."""
    shown = float(min(x, _HUGE))
    return f"{shown:.0f}" if 100 <= shown < 10**6 else f"{shown:.3g}"


def _time(us: Fraction) -> str:
    return f"{_number(us / 1000)} ms" if us >= 1000 else f"{_number(us)} us"
