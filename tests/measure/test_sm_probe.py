"""Which multiprocessors collectives take: what waves tell, by hand, and that the program runs, where there is no GPU and as if there were one."""
from __future__ import annotations

import ctypes
import json
import os

import pytest

pytest.importorskip("torch")

ALL = frozenset(range(4))


def wave(of, **begins_us: float):
    """A wave on four multiprocessors that is ready at 1,000 us of the GPU's clock. begins_us: how much later each CTA begins, by its multiprocessor; m0b is a second one on m0."""
    return of.Wave(1_000_000, tuple((int(name[1]), round(1000 * (1000 + us))) for name, us in begins_us.items()))


def test_a_multiprocessor_is_taken_until_a_cta_begins_on_it(program):
    of = program("waves")
    seen = wave(of, m0=1.0, m1=1.5, m2=9.0, m3=2.0)
    assert seen.last_us == pytest.approx(9) and seen.taken(ALL, 2.0) == pytest.approx({2: 9.0})


def test_a_wave_that_begins_later_as_a_whole_says_that_none_is_taken(program):
    """As one does on a GPU that is busy with copies."""
    assert wave(program("waves"), m0=5.0, m1=5.2, m2=5.5, m3=5.1).taken(ALL, 2.0) == {}


def test_one_on_which_none_begins_is_taken_at_least_until_the_wave_is_whole(program):
    """The CTA that should have been on 3 is the second on 0, once the first is over."""
    of = program("waves")
    assert wave(of, m0=1.0, m1=1.5, m2=6.0, m0b=21.0).taken(ALL, 2.0) == pytest.approx({2: 6.0, 3: 21.0})


def test_beside_nothing_the_median_wave_says_what_is_soon(program):
    of = program("waves")
    idle = of.idle_of([wave(of, m0=1.0, m1=late) for late in (2.0, 3.0, 40.0)])
    assert (idle.us, idle.within_us, idle.multiprocessors) == (pytest.approx(3), pytest.approx(6), {0, 1})


def test_waves_that_begin_as_late_as_others_end_tell_nothing(program):
    of = program("waves")
    with pytest.raises(ValueError, match="after 12.0 us, and each holds its multiprocessor for 20 us"):
        of.idle_of([wave(of, m0=1.0, m1=12.0)])


def test_what_three_waves_say_by_hand(program):
    """None, one and two of four are taken: one at a time, in the median, for 10 us; the median wave is whole 9 us later than the 1 us that it takes beside nothing."""
    of = program("waves")
    waves = [wave(of, m0=0.5, m1=0.6, m2=0.7, m3=1.0), wave(of, m0=1.0, m1=1.0, m2=1.0, m3=10.0), wave(of, m0=1.0, m1=1.0, m2=10.0, m3=20.0)]
    told = of.told_of(waves, of.Idle(1.0, ALL))
    assert (told["taken_median"], told["taken_mean"], told["taken_most"], told["left_least"], told["multiprocessors"]) == (1, 1, 2, 2, [2, 3])
    assert told["taken_us"] == pytest.approx(10) and told["late_us"] == pytest.approx(9) and told["late_most_us"] == pytest.approx(19) and told["waves"] == 3


def test_of_the_ranks_the_one_with_more_taken_is_told_and_covered_only_if_all_are(program):
    row = {"taken_median": 3, "taken_mean": 3.0, "is_covered": True, "is_held": True}
    assert program("sm_probe").most([{**row, "rank": 0, "is_covered": False}, {**row, "rank": 1, "taken_mean": 3.5}]) == {**row, "rank": 1, "taken_mean": 3.5, "is_covered": False}


def check(told: dict, ctas: list, said: str) -> None:
    assert told["schema"] == "tidec.sm_probe/1" and told["sms"] == 4 and told["ranks"] == 2 and len(said.strip().splitlines()) == 2 + len(ctas)
    assert [(r["collective"], r["by"], r["ctas"]) for r in told["rows"]] == ctas
    for r in (told["idle"], *told["rows"]):
        assert r["waves"] == 2 * 32 and len(r["rounds_taken"]) == 2 and 0 <= r["taken_median"] <= r["taken_most"] <= 4 == r["left_least"] + r["taken_most"]
    assert all(r["call_alone_us"] > 0 < r["call_beside_us"] and r["calls"] > 0 for r in told["rows"]) and told["idle"]["calls"] == 0


@pytest.mark.slow
def test_it_runs_on_processes_of_this_machine(small_bundle, ran, tmp_path):
    said = ran("sm_probe.py", small_bundle, "--target", "host", "--rounds", 2)
    check(json.loads((tmp_path / "sm_probe.json").read_text()), [(c, by, None) for c in ("all_gather", "reduce_scatter") for by in ("stock", "plan")], said)


@pytest.mark.slow
def test_what_only_gpus_come_to_runs_too(small_bundle, ran, tmp_path):
    said = ran("sm_probe.py", small_bundle, "--rounds", 2, "--group", "head", as_gpu=True)
    told = json.loads((tmp_path / "sm_probe.json").read_text())
    check(told, [("all_gather", "stock", None), ("all_gather", "plan", None), ("reduce_scatter", "stock", None), *(("reduce_scatter", "plan", n) for n in (16, 8, 12))], said)


@pytest.mark.slow
def test_waves_compile_without_a_gpu(program, tmp_path, monkeypatch):
    from tidec.build.cuda import find_tools
    from tidec.errors import TidecError

    monkeypatch.setenv("TIDEC_CUDA_ARCH", os.environ.get("TIDEC_CUDA_ARCH", "9.0"))
    try:
        find_tools()
    except TidecError as problem:
        pytest.skip(problem.diagnostics[0].sentence)
    program("waves").compile_into(tmp_path)
    library = ctypes.CDLL(str(tmp_path / "waves.so"))
    assert library.waves_prepare and library.waves_launch
