"""The compiled echo equals the plans, on every rank, and says where it does not."""
import hashlib
import multiprocessing
import tempfile
from pathlib import Path

import pytest

from tidec.build.compile import MAX_STEPS, build_echo, check_echo, compare, echoed, sample
from tidec.build.toolchain import find_compiler
from tidec.emit.render import Source, render
from tidec.errors import Exit, TidecError
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import Topology
from tidec.plan.lower import lower
from tidec.plan.steps import Space
from tidec.schedule.program import OpKind
from tidec.verify.certificate import Proved

GATHER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER
P2P, NVLS = Lowering.P2P, Lowering.NVLS
STRICT = ("-O0", "-Wall", "-Wextra", "-Werror")


def group(stored, gathered, other):
    """Rows that no rank count divides, a parameter with fewer rows than ranks, one with none, a frozen one (of type `other`) between the others."""
    def p(name, *shape):
        return Parameter(name, shape, stored)

    frozen = Parameter("frozen", (4, 3), other, requires_grad=False)
    return Group("g", 1, (p("a", 7, 3), p("b", 33), frozen, p("none", 0, 4), p("c", 50, 6), p("d", 1, 2, 2)), param_dtype=gathered)


SAME = group(Dtype.BF16, None, Dtype.BF16)
CAST = group(Dtype.FP32, Dtype.BF16, Dtype.BF16)
# Knobs that a lane count does not allow are left out for it (W above L), and an outbox is never too small for its rounds.
REDUCES = (
    (SAME, P2P, {}),
    (CAST, NVLS, dict(W=1, n_stg=1)),
    (CAST, P2P, dict(W=2, k=2, n_part=2, n_out=4)),
    (SAME, NVLS, dict(W=3, k=2, n_stg=3, n_out=2)),
    (SAME, P2P, dict(W=2, k=2, n_part=2, n_out=4, n_stg=3, chunk_bytes=64, stripes=3)),
    (CAST, NVLS, dict(chunks=5)),
)
GATHERS = ((SAME, P2P), (CAST, NVLS), (CAST, P2P), (SAME, NVLS))
# Three passes are three times the work, so they are for small machines.
PASSES = (SAME, P2P, dict(k=1, n_part=3, n_out=3, n_stg=1))


def plan(nodes, lanes, collective, of, lowering, knobs=()):
    settings = [f"{name}={value}" for name, value in dict(knobs).items() if name != "W" or value <= lanes]
    return lower(Ask(Topology(nodes, lanes), of, lowering, parse_knobs(settings, lanes, nodes=nodes)), collective)


def plans_of(nodes, lanes):
    reduces = REDUCES + ((PASSES,) if nodes <= 5 else ())
    return [plan(nodes, lanes, REDUCE, *row) for row in reduces] + [plan(nodes, lanes, GATHER, *row) for row in GATHERS]


def emitted(plans):
    return render([Proved(p, "{}") for p in plans])


def mismatches(plans, calls, flags=STRICT):
    """What differs on any rank, as text; one compiler run for all plans. calls(i): the calls in which plan i is compared."""
    with tempfile.TemporaryDirectory() as beside:
        echo = build_echo(emitted(plans), Path(beside), find_compiler(), flags=flags)
        found, told, steps = [], hashlib.sha256(), 0
        for i, p in enumerate(plans):
            for call in calls(i):
                try:
                    steps += compare(echo, p, program=i, call=call, ranks=range(p.ranks), told=told)
                except TidecError as problem:
                    found.append(f"{p.nodes}x{p.lanes} {p.schedule} {p.knobs}: {problem}")
        return found, steps


def test_the_echo_of_two_ranks_worked_by_hand():
    of = Group("g", 1, (Parameter("w", (4, 2), Dtype.BF16),))
    p = plan(1, 2, GATHER, of, P2P)
    with tempfile.TemporaryDirectory() as beside:
        echo = build_echo(emitted([p]), Path(beside), find_compiler(), flags=STRICT)
        assert dict(echoed(echo, p, program=0, call=1, ranks=(1,)))[1].decode() == """\
entry wait released by 0.1 >= 1
entry signal room for 0.0 = 2
entry signal room for 0.1 = 2
scatter wait room by 0.0 >= 2
scatter wait room by 0.1 >= 2
scatter copy shard@0.1+0 -> arena@0.0+24 8x1
scatter copy shard@0.1+0 -> arena@0.1+24 8x1
scatter join
scatter signal scattered for 0.1 = 2
scatter signal done for 0.0 = 2
scatter signal done for 0.1 = 2
update wait scattered by 0.1 >= 2
update free shard@0.1+0 8x1
compute wait done by 0.0 >= 1
compute wait done by 0.1 >= 1
compute read arena@0.1+0 16x1
compute signal released for 0.1 = 2
"""


def test_the_echo_equals_the_plans_of_small_machines():
    plans = [p for nodes, lanes in ((1, 1), (1, 4), (2, 1), (2, 2), (3, 2), (5, 4), (9, 2)) for p in plans_of(nodes, lanes)]
    found, steps = mismatches(plans, lambda i: (0, 3))
    assert found == [] and steps > 100_000


def test_the_emitted_program_has_no_undefined_behaviour():
    plans = [p for nodes, lanes in ((1, 2), (4, 2)) for p in plans_of(nodes, lanes)]
    found, _ = mismatches(plans, lambda i: (0, 1, 2**31 - 1), flags=(*STRICT, "-fsanitize=undefined", "-fno-sanitize-recover=undefined"))
    assert found == []


def test_offsets_past_32_bits_are_echoed_whole():
    """A table of more than 2**32 bytes on one node of eight lanes, and larger ones on several nodes, where all kinds of offset, width and pitch are past it."""
    def of(shape, stored, after):
        return Group("g", 1, (Parameter("w", shape, stored), Parameter("b", (9, 3), after)), param_dtype=Dtype.BF16)

    plans = [plan(1, 8, c, of((19345706, 128), Dtype.BF16, Dtype.BF16), P2P) for c in Collective]
    # Five nodes, so that a round of the all-gather places a run of slots; two stored types, so that there are two runs of casts.
    plans += [plan(5, 2, GATHER, of((2**28 + 1, 640), *stored), P2P) for stored in ((Dtype.BF16, Dtype.BF16), (Dtype.FP32, Dtype.BF16))]
    # W = 1 on three nodes, so that an inbox block is zeroed.
    plans += [plan(3, 2, REDUCE, of((2**28 + 1, 640), Dtype.BF16, Dtype.BF16), how, dict(W=1, n_part=2)) for how in Lowering]
    for collective in Collective:
        moves = [m for p in plans if p.collective is collective for step in p.steps(p.ranks - 1, 3) for m in step.moves]
        spaces = {Space.SHARD, Space.ARENA} if collective is GATHER else {Space.GRAD, Space.ARENA, Space.OUT}
        assert {place.space for m in moves for place in (m.src, m.dst) if place.offset > 2**32} == spaces
        assert all(any(size(m) > 2**32 for m in moves) for size in (lambda m: m.width, lambda m: m.src_pitch, lambda m: m.dst_pitch))
    assert any(e.bytes > 2**32 for p in plans for step in p.steps(p.ranks - 1, 3) if step.kind is OpKind.ZERO for e in step.extents)
    with tempfile.TemporaryDirectory() as beside:
        echo = build_echo(emitted(plans), Path(beside), find_compiler(), flags=STRICT)
        for i, p in enumerate(plans):
            assert compare(echo, p, program=i, call=3, ranks=(0, p.ranks - 1), told=hashlib.sha256()) > 0


def _half(nodes_and_lanes):
    # Every rank of every plan; both calls on small machines, and on the larger ones either, plan by plan.
    return [mismatches(plans_of(n, lanes), lambda i: (0, 3) if n <= 8 else ((0, 3)[(i + n) % 2],)) for n, lanes in nodes_and_lanes]


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_the_echo_equals_the_plans_on_every_rank(lanes):
    nodes = (*range(1, 18), 24, 33)
    # Two halves of about the same work: M = 33 on one side, M = 24 and 17 on the other.
    halves = [[(n, lanes) for n in nodes if (n == 33 or n <= 12) is side] for side in (True, False)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        results = [r for half in pool.map(_half, halves) for r in half]
    assert [text for found, _ in results for text in found] == []
    assert len(results) == len(nodes) and all(steps > 0 for _, steps in results)


# What each of these does to a plan of the reduce-scatter on 5x2 (W = 1, so several waves) or of the all-gather on 3x2.
MUTATIONS = (
    (REDUCE, "wrap(n + c, M)", "back(n - c, M)", "net wait"),                      # another peer
    (REDUCE, "(j + c) % 2", "(j + c + 1) % 2", "net put"),                         # another sub-slice of the inbox
    (REDUCE, "const int64_t bank = e % 2;", "const int64_t bank = 0;", "sum sum"),
    (REDUCE, "kOthers", "kAll", ""),                                               # the own staged block is summed too
    (REDUCE, "w == 0);", "true);", "net land"),                                    # the second wave starts from zero again
    (REDUCE, "ops.zero(kNet, kInbox(gen, (j + d) % 2)", "ops.zero(kNet, kInbox(gen, d)", "net zero"),
    (REDUCE, "ops.join(kPush);", "", "push join"),
    (GATHER, "kHave(h).by(peer_1, j), e * h + k + 1", "kHave(h).by(peer_1, j), e * h + k", "rail wait"),
    (GATHER, "kStage(h + k).at(peer, j)", "kStage(h + k).at(n, j)", "rail put"),
    (GATHER, "h *= 2", "++h", ""),
    (GATHER, "++i) ops.signal(kEntry", "i += 2) ops.signal(kEntry", "entry signal"),
    (GATHER, "e * h + k + 1, kSent(h + k)", "e * h + 1, kSent(h + k)", "rail put"),
)


@pytest.mark.parametrize(("collective", "old", "new", "differs"), MUTATIONS)
def test_a_change_of_one_emitted_index_is_found(collective, old, new, differs):
    p = plan(5 if collective is REDUCE else 4, 2, collective, SAME, P2P, dict(W=1) if collective is REDUCE else {})
    sources = emitted([p])
    changed = [Source(s.name, s.text.replace(old, new)) if s.name.startswith("g.") else s for s in sources]
    assert changed != list(sources), f"the emitted walk has no {old!r} to change"
    with pytest.raises(TidecError) as caught:
        check_echo(changed, [p])
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "V501" and caught.value.exit is Exit.REFUTED
    told = dict(line.split(":", 1) for line in diagnostic.example)
    assert told["plan"] != told["echo"] and told["plan"].strip().startswith(differs)
    assert diagnostic.spots[0].file == f"schedules/{p.schedule}.py" and diagnostic.spots[0].line > 0
    assert "on rank 0." in diagnostic.sentence and "in call " in diagnostic.sentence


def test_a_change_of_a_table_is_found():
    p = plan(3, 2, REDUCE, SAME, P2P)
    sources = emitted([p])
    (tables,) = [s for s in sources if s.name == "tables.hpp"]
    changed = Source(tables.name, tables.text.replace("{0, 0, 6, 0}", "{0, 0, 5, 0}"))
    assert changed != tables
    with pytest.raises(TidecError) as caught:
        check_echo([changed if s is tables else s for s in sources], [p])
    assert caught.value.diagnostics[0].code == "V501"


def test_the_report_says_what_was_compared():
    p = plan(2, 2, GATHER, SAME, P2P)
    report = check_echo(emitted([p]), [p])
    assert report.ranks_covered == 4 and report.steps == 2 * sum(len(list(p.steps(r))) for r in range(4))
    assert report == check_echo(emitted([p]), [p])
    assert check_echo(emitted([]), []).steps == 0


def test_a_large_plan_is_sampled():
    p = plan(5, 2, GATHER, SAME, P2P)
    assert sample(p, 0) == (0, 1, 2, 3, 8, 9)
    drawn = sample(p, 3)
    assert len(drawn) == 10 and set(drawn) <= set(range(10))
    large = plan(40, 2, GATHER, SAME, P2P)
    assert len(sample(large, 3)) == 16 and sample(large, 3) == sample(plan(40, 2, GATHER, SAME, P2P), 3)
    report = check_echo(emitted([p]), [p], max_steps=100)
    assert report.ranks_covered == len({*sample(p, 0), *drawn}) and report.steps < check_echo(emitted([p]), [p], max_steps=MAX_STEPS).steps


def test_a_program_that_fails_is_no_match():
    p = plan(2, 1, GATHER, SAME, P2P)
    changed = [Source(s.name, s.text.replace("ops(runner, kLayout);", "ops(runner, kLayout); __builtin_abort();")) for s in emitted([p])]
    with pytest.raises(TidecError) as caught:
        check_echo(changed, [p])
    assert caught.value.diagnostics[0].code == "V501" and "ended early" in caught.value.diagnostics[0].reason


def test_a_program_that_does_not_compile_shows_what_the_compiler_says():
    p = plan(2, 1, GATHER, SAME, P2P)
    changed = [Source(s.name, s.text.replace("kStage(", "kStaje(")) for s in emitted([p])]
    with pytest.raises(TidecError) as caught:
        check_echo(changed, [p])
    assert caught.value.diagnostics[0].code == "E002" and "kStaje" in caught.value.diagnostics[0].example[0]


def test_a_sample_is_thinned_evenly_and_keeps_both_ends():
    from tidec.build.compile import _thinned

    assert _thinned(tuple(range(40)), 40) == tuple(range(40))
    assert _thinned(tuple(range(40)), 4) == (0, 13, 26, 39)
    assert _thinned(tuple(range(40)), 0) == (0, 39)


def test_a_rank_with_too_many_ops_is_refused_at_once():
    from tidec.build.compile import _count

    class Endless:
        """A plan whose ranks never end."""

        nodes = 268_435_455

        def steps(self, rank):
            return iter(int, 1)

    with pytest.raises(TidecError, match="E004.*268,435,455 nodes"):
        _count(Endless(), 1000)
