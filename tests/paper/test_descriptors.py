"""How many copies push gradients in a call, at the size of the paper's example: L = 8, M = 64, P = 30 (section 4.1).

The paper counts every owner with every parameter: (L-1)PML copies of one row each, or (L-1)PM strided ones. Here an owner's sub-slice is a contiguous
piece of the packed row, which touches few of the parameters, so that a plan has far fewer: 1,680, and 13,440 with a copy of each row. The pushes themselves
are the same, and where each of them has 30 parameters, which takes 240 of them, the plan has the paper's counts.
"""
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import default_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import Topology
from tidec.plan.cost import cost
from tidec.plan.lower import lower
from tidec.schedule.program import OpKind

L, M, P = 8, 64, 30


def pushes(rows: int, num_params: int = P):
    """(pushes of rank 0 in a call, their descriptors, the rows of those) for equal parameters of so many rows."""
    group = Group("g", 1, tuple(Parameter(f"p{i}", (rows, 16), Dtype.BF16) for i in range(num_params)))
    plan = lower(Ask(Topology(M, L), group, Lowering.P2P, default_knobs(L)), Collective.REDUCE_SCATTER)
    steps = [s for s in plan.steps(0) if s.kind is OpKind.COPY and s.stream == "push"]
    assert sum(len(s.moves) for s in steps) == cost(plan).descriptors
    return len(steps), sum(len(s.moves) for s in steps), sum(m.rows for s in steps for m in s.moves)


def test_the_paper_s_counts_are_every_push_with_every_parameter():
    num_pushes, _, _ = pushes(512)
    assert num_pushes == (L - 1) * M
    assert num_pushes * P == 13_440
    assert num_pushes * P * L == 107_520


def test_where_every_push_has_thirty_parameters_a_plan_has_the_paper_s_counts():
    # Eight owners share a row of 240 equal parameters: each owner's piece of it is 30 whole ones, and so is each push.
    num_pushes, descriptors, rows = pushes(512, L * P)
    assert num_pushes == (L - 1) * M
    assert descriptors == (L - 1) * P * M == 13_440
    assert rows == (L - 1) * P * M * L == 107_520


def test_short_tails_of_padded_rows_come_to_the_paper_s_counts_and_take_no_row_more():
    # 1,023 rows, two a rank: the last rank has one, so that what goes to its node is seven owners' rows of two and a tail of one.
    _, descriptors, rows = pushes(1023, L * P)
    assert descriptors == 13_440 + (L - 1) * P
    assert rows == 107_520


def test_ranks_without_rows_are_sent_nothing():
    # 500 rows: node 62 has four of its eight and node 63 has none. Rank 0 pushes to seven owners on node 62, and nothing for node 63.
    _, descriptors, rows = pushes(500, L * P)
    assert descriptors == 13_440 - (L - 1) * P
    assert rows == 107_520 - (L - 1) * P * (L + L // 2)


def test_a_plan_has_one_strided_copy_for_each_run_of_a_sub_slice():
    # E = 30 * 16 elements in sub-slices of 64: seven of four runs and one of two, 30 together. For each of 64 nodes rank 0 pushes all but its own one, which
    # turns with the contributor: eight times each.
    _, descriptors, rows = pushes(512)
    assert descriptors == (M - M // L) * 30 == (L - 1) * M * P // L == 1_680
    assert rows == descriptors * L


def test_rows_past_the_end_are_not_pushed():
    # 500 rows, one a rank: node 62 has four of its eight and node 63 has none. Rank 0 keeps sub-slice 62 % 8 of the one and 63 % 8, of two runs, of the other.
    _, descriptors, rows = pushes(500)
    assert descriptors == 1_680 - 28
    assert rows == (descriptors - 26) * L + 26 * 4
