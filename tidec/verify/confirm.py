"""A race that the search for all M reports is looked up on the explicit graph of its example before it is believed.

The search refutes by finding no path of waits of its own shape. Where the graph has a path after all, the finding is not a race but something that
the search could not show: unknown, which is a failure too, but says what is true. A race that the graph shows at another small node count takes its place.
"""
from __future__ import annotations

from dataclasses import replace

from typing import TYPE_CHECKING

from tidec.schedule.program import Program
from tidec.verify.judge import Finding
from tidec.verify.obligation import Example, Instance, Outcome, Verdict
from tidec.verify.terms import Values

if TYPE_CHECKING:
    from tidec.verify.graph import Problem

MAX_RANKS = 48         # ranks of an explicit graph; beyond, the example stands as it is
OTHER_NODES = (2, 3, 4, 5, 6)


def confirmed(finding: Finding, program: Program) -> Finding:
    """The finding; or the race that the explicit graph shows at a small node count; or, where it shows none, the finding as unknown."""
    o, example = finding.obligation, finding.outcome.example
    if o.code not in ("V201", "V205") or example is None or len(example.instances) != 2 or example.nodes * program.lanes > MAX_RANKS:
        return finding
    from tidec.verify.graph import At, check, ordered

    (_, first, u), (_, then, v) = example.instances
    try:
        path = ordered(program, example.nodes, At.of(first, u, o.instances[0].event), At.of(then, v))
    except KeyError:
        return finding
    if not path:
        return finding
    for nodes in OTHER_NODES:
        if nodes * program.lanes <= MAX_RANKS:
            for problem in check(program, nodes).problems:
                if problem.code in ("V201", "V205") and len(problem.points) == 2:
                    return _seen(finding, nodes, problem)
    return replace(finding, outcome=Outcome(Verdict.UNKNOWN, None, finding.outcome.steps, finding.outcome.seconds))


def _seen(finding: Finding, nodes: int, problem: Problem) -> Finding:
    """The finding with the race of the explicit graph as its example."""
    roles = ("first", "then")
    points = [(p.op.id, {"n": p.rank[0], "j": p.rank[1], **dict(zip(p.names, p.values))}) for p in problem.points]
    example = Example(nodes, tuple((role, op_id, indices) for role, (op_id, indices) in zip(roles, points)))
    ops = ", ".join(p.op.label for p in problem.points)
    shown = tuple(Instance(role, op_id, Values(indices), tuple(x for x in indices if x not in ("n", "j", "e"))) for role, (op_id, indices) in zip(roles, points))
    obligation = replace(finding.obligation, code=problem.code, what=f"{problem.where}: {ops}: as the explicit graph shows", instances=shown)
    return Finding(obligation, replace(finding.outcome, example=example))
