"""A race that the search for all M reports is looked up on the explicit graph of its example before it is believed.

The search refutes by finding no path of waits of its own shape. Where the graph has a path after all, the finding is not a race but something that
the search could not show: unknown, which is a failure too, but says what is true.
"""
from __future__ import annotations

from dataclasses import replace

from tidec.schedule.program import Program
from tidec.verify.judge import Finding
from tidec.verify.obligation import Outcome, Verdict

MAX_RANKS = 48         # ranks of an explicit graph; beyond, the example stands as it is
OTHER_NODES = (2, 3, 4, 5, 6)


def confirmed(finding: Finding, program: Program) -> Finding:
    """The finding, or the same one as unknown where the explicit graph orders the two ops of its example and of every small node count."""
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
                if problem.code == o.code and {p.op.id for p in problem.points} == {first, then}:
                    return finding
    return replace(finding, outcome=Outcome(Verdict.UNKNOWN, None, finding.outcome.steps, finding.outcome.seconds))
