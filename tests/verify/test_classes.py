"""Every class of the reduce-scatter at eight lanes, for every M that does not collide: all widths, rounds, passes and outboxes.

A seeded tenth runs by default, `pytest -m slow` decides the others, 480 classes together.
"""
import random
import statistics
import time

import pytest

from tidec.schedule.catalog import traced
from tidec.verify.obligation import Verdict
from tidec.verify.prove import prove
from tidec.verify.solver import Answers

LANES = 8


def outbox_of_two_rounds(width: int, k: int) -> int:
    """Paper eq. 9 for many waves: the most transfers of two consecutive rounds."""
    rounds = [min(k, width - first) for first in range(0, width, k)] * 2
    return max(a + b for a, b in zip(rounds, rounds[1:]))


# Classes that differ in the outbox alone have most claims in common, and are proved together; others share what they have.
FAMILIES = [(width, k, n_part) for width in range(1, LANES + 1) for k in range(1, width + 1) for n_part in range(1, 5)]
TENTH = set(random.Random(20).sample(FAMILIES, len(FAMILIES) // 10))


def outboxes(width: int, k: int) -> list[int | str]:
    return list(dict.fromkeys(("full", k, 2 * k, outbox_of_two_rounds(width, k))))


class Kept(dict):
    """The branch of one node is the same for many classes."""

    def get(self, key):
        return super().get(key, "")

    def put(self, key, value):
        self[key] = value


KEPT, ANSWERS = Kept(), Answers()


def test_the_outbox_of_two_rounds_is_equation_9():
    assert outbox_of_two_rounds(8, 4) == 8
    assert outbox_of_two_rounds(8, 5) == 8
    assert outbox_of_two_rounds(7, 3) == 6
    assert sum(len(outboxes(width, k)) for width, k, _ in FAMILIES) == 480


CUTS = [(8, 4, 1, "full", 4, 1, 2), (8, 4, 1, 4, 4, 4, 3), (4, 2, 2, 3, 6, 3, 1), (3, 2, 1, "full", 4, 2, 8), (1, 1, 3, 1, 16, 2, 2)]


@pytest.mark.parametrize(("width", "k", "n_part", "n_out", "chunks", "stripes", "n_stg"), CUTS)
def test_blocks_in_chunks_and_stripes_are_proved(width, k, n_part, n_out, chunks, stripes, n_stg):
    report = prove(traced("tide_rs", LANES, W=width, k=k, n_part=n_part, n_out=n_out, chunks=chunks, stripes=stripes, n_stg=n_stg), with_premises=True)
    assert not [str(c.diagnostic) for c in report.claims if c.verdict is not Verdict.PROVED]
    assert report.counts()["proved"] > 300


@pytest.mark.parametrize(("width", "k", "n_part"), [pytest.param(*f, marks=() if f in TENTH else pytest.mark.slow) for f in FAMILIES])
def test_every_claim_of_a_class_is_proved(width, k, n_part, record_property):
    for n_out in outboxes(width, k):
        report = prove(traced("tide_rs", LANES, W=width, k=k, n_part=n_part, n_out=n_out), with_premises=True, store=KEPT, answers=ANSWERS)
        assert not [str(c.diagnostic) for c in report.claims if c.verdict is not Verdict.PROVED], n_out
        assert report.counts()["proved"] > 300, n_out
        record_property("counted", (f"claims of classes with a {'full' if n_out == 'full' else 'partial'} outbox", len(report.claims), report.seconds))


# Of widths that divide the lanes or not, rounds that fill a wave or not, one pass and many.
APART = [(8, 4, 1), (8, 4, 4), (5, 1, 4), (4, 4, 3), (2, 1, 3)]


@pytest.mark.slow
def test_a_partial_outbox_costs_at_most_twice_a_full_one_where_nothing_is_shared():
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for width, k, n_part in APART:
        for n_out in outboxes(width, k):
            begin = time.process_time()
            report = prove(traced("tide_rs", LANES, W=width, k=k, n_part=n_part, n_out=n_out), with_premises=True)
            seconds[n_out == "full"].append(time.process_time() - begin)
            assert report.verdict is Verdict.PROVED, (width, k, n_part, n_out)
    assert statistics.fmean(seconds[False]) <= 2 * statistics.fmean(seconds[True]), seconds
