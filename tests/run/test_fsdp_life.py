"""Installing, uninstalling, saving and loading change no number, and leave nothing behind."""
from __future__ import annotations

import os

import pytest

QUICK = ("overlapping", "in the middle")
LONG = ("toggled", "cycled", "dropped", "two roots", "wrapped by others", "switched", "given plans")


def the_same(ranks: list[dict]) -> dict:
    """What all ranks found, which has to be one thing."""
    assert all(found == ranks[0] for found in ranks), ranks
    return ranks[0]


@pytest.fixture(scope="module")
def lives(long_job) -> dict[str, list[dict]]:
    return long_job("fsdp_life.py", *LONG, *QUICK, timeout_s=900).results


@pytest.mark.slow
def test_a_model_is_uninstalled_at_any_moment(lives):
    """Each of the two is two runs of a model whose numbers are compared by the rank itself."""
    assert the_same(lives["in the middle"])["seen"] > 40
    assert the_same(lives["overlapping"])["codes"] == ["F014", "F014", "F014", "F015", "F015"]


@pytest.mark.slow
def test_stock_and_tidec_in_turns_give_the_bits_of_stock(lives):
    assert the_same(lives["toggled"])["seen"] == 200 * 13


@pytest.mark.slow
def test_fifty_times_installed_and_uninstalled_leave_nothing(lives):
    """Files and maps are counted exactly; Python and the allocator may keep 4 MiB more after 50 times than after 10."""
    for found in lives["cycled"]:
        (files, maps, kib), (files_after, maps_after, kib_after) = found["after 10"], found["after 50"]
        assert files_after <= files and maps_after <= maps + 4 and kib_after <= kib + 4096, found


@pytest.mark.slow
def test_a_model_that_nobody_uninstalls_goes_with_its_last_user(lives):
    assert the_same(lives["dropped"]) == {}


@pytest.mark.slow
def test_of_two_roots_one_may_leave(lives):
    assert the_same(lives["two roots"]) == {}


@pytest.mark.slow
def test_somebody_else_around_fsdp2s_functions_is_told(lives):
    assert the_same(lives["wrapped by others"])["code"] == "F013"


@pytest.mark.slow
def test_the_switches_do_what_they_say(lives):
    assert the_same(lives["switched"]) == {
        "disabled": 0, "disabled reasons": ["F301", "F301"], "disabled and required": "F301 F301", "required": "F106", "required by argument": "F106",
        "otherwise": {"F106": 2}, "misspelt": "P001",
    }


@pytest.mark.slow
def test_plans_that_are_given_run_or_are_refused_with_the_reason(lives):
    assert the_same(lives["given plans"]) == {
        "2x2": 24, "kept": {"F202": 3}, "other size": ["F304"], "other size, required": ["F304"], "absent": ["F306"], "absent, required": ["F306"], "partly": ["", "F302", "F302"], "one rank": "F010",
    }


@pytest.mark.slow
def test_saved_and_resumed_in_a_new_process_it_goes_on_with_the_same_bits(job, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (whole,) = job("fsdp_life.py", f"saved={kept}").results.values()
    assert sorted(os.listdir(kept)) == ["0.pt", "1.pt", "2.pt", "3.pt", "dcp"]
    names = ("resumed before", "resumed after", "resumed from dcp before", "resumed from dcp after", "resumed by assigning")
    for name, ranks in job("fsdp_life.py", *(f"{name}={kept}" for name in names)).results.items():
        for rank, found in enumerate(ranks):
            assert found["trace"] == whole[rank]["trace"], f"{name}: rank {rank}"
