"""Appendix D of the paper, with the premise that plans are made under."""
import pytest

from tidec.verify.obligation import Verdict
from tidec.verify.sweep import collides, paper_sweep, premise_is_exact


def test_the_paper_s_counts():
    sweep = paper_sweep()
    assert (sweep.accepted, sweep.rejected) == (458_304, 65_472)
    assert sweep.colliding == (0, 0, 127, 0, 256, 256, 384, 0)
    assert sweep.verdict is Verdict.PROVED
    assert sweep.disagreements == 0


@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 6, 12, 72])
def test_the_premise_is_exact_at_other_lane_counts(lanes):
    for width in {1, max(1, lanes // 2), max(1, lanes - 1), lanes}:
        assert premise_is_exact(lanes, width) is Verdict.PROVED, (lanes, width)


def test_the_smallest_collision_of_width_3_is_at_9_nodes():
    assert [m for m in range(2, 12) if collides(m, 8, 3)] == [9]
