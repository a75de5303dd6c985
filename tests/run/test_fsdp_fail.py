"""What goes wrong on one rank stops all of them, inside the deadline, with the reason; and where it can be known before anything is changed, nothing is."""
from __future__ import annotations

import json
import os
import platform
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

DEADLINE_S = 6.0     # as in fsdp_fail.py
CLOCK_NANOSLEEP = {"x86_64": "230", "aarch64": "115"}.get(platform.machine(), "")


@pytest.fixture(scope="module")
def told(long_job) -> dict[str, list[dict]]:
    return long_job("fsdp_fail.py", "other model", "other arguments", "absent", "sharded later", "broken on one rank", "unused as zero", "failing hook").results


@pytest.mark.slow
def test_ranks_with_other_models_are_told_before_any_collective(told):
    """NCAR/miles-credit#416 (row 7): both values are named on every rank, nothing is changed, and another model is installed afterwards."""
    for found in told["other model"]:
        assert found["code"] == "F010"
        assert re.search(r'rank 0 has .*"shape":\[7,2\].*, rank 2 has .*"shape":\[4,2\]', found["text"])


@pytest.mark.slow
def test_ranks_with_other_arguments_or_switches_are_told(told):
    for found in told["other arguments"]:
        (code, text), (of_switch, switch) = found["mode"], found["switch"]
        assert code == of_switch == "F010"
        assert "rank 0 has mode in_place" in text and "rank 1 has mode slot_reuse" in text
        assert "rank 0 has it runs, rank 3 has F301 TIDEC_DISABLE=1" in switch


@pytest.mark.slow
def test_ranks_that_do_not_call_install_are_named_at_the_deadline(told):
    """As where only rank 0 calls it. In hybrid sharding each of those that came names its replica."""
    flat, hybrid = ([found[name] for found in told["absent"]] for name in ("flat", "hybrid"))
    assert flat[1:] == [None] * 3 and hybrid[2:] == [None] * 2
    for (code, text), who in ((flat[0], "ranks 1, 2, 3"), (hybrid[0], "rank 2"), (hybrid[1], "rank 3")):
        assert code == "F016" and f"{who} did not call tidec.install within 2 s\n  help: call tidec.install on every rank, at the same point" in text


@pytest.mark.slow
def test_a_group_that_is_sharded_after_install_is_reported_with_its_reason(told):
    why = "F309 it was sharded after tidec.install; call install last"
    for found in told["sharded later"]:
        assert found["before"] == {} and found["after"] == {why: 1} and found["by_plan"] > 0
        assert found["groups"] == [["blocks.0", ""], ["blocks.1", ""], ["root", why]] and found["text"] == f"root: stock, {why}"


@pytest.mark.slow
def test_a_rank_that_cannot_keeps_all_from_it_in_every_replica(told):
    """pytorch#177472 (row 37): what one rank found is told on all. In hybrid sharding ranks 0 and 1 are a group of their own."""
    for found in told["broken on one rank"]:
        assert found["reasons"] == ["F306 rank 3 cannot run the plans: E006 multicast cannot be bound (CUDA error 401): the fabric manager does not run"] * 2


@pytest.mark.slow
def test_what_a_rank_does_not_use_counts_as_zero_where_fsdp2_is_told_so(told):
    """pytorch#158719 (row 61), with set_reduce_scatter_unused_params: stock's bits."""
    assert told["unused as zero"] == [{"by_plan": 2}] * 4


@pytest.mark.slow
def test_after_an_exception_in_a_backward_pass_training_goes_on(told):
    """FSDP2 is told to forget the step (reset_iter_state), as without tidec; landings that were held are free again, and no call stays stock."""
    for found in told["failing hook"]:
        assert found["is_equal"] and found["seen"] > 40 and found["stock"] == {}


@pytest.mark.slow
def test_calls_that_go_stock_later_are_told_once_on_one_rank(job):
    """Each group, collective and reason has one line, however often it happens, beside those of install."""
    found = job("fsdp_fail.py", "told later", timeout_s=240)
    (stock, *others) = [rank["stock"] for rank in found.results["told later"]]
    assert all(other == stock for other in others) and {code for codes in stock.values() for code in codes} == {"F107", "F201"}
    lines = [re.fullmatch(r'tidec: group "(.*)" (.*) stock for now: (F...) .*', line) for line in found.err[0].splitlines() if " stock for now: " in line]
    told = [f"{line[1]} {line[2].replace('-', '_')} {line[3]}" for line in lines]
    assert sorted(told) == sorted(f"{name} {code}" for name, codes in stock.items() for code in set(codes))
    assert not any(" stock for now: " in text for text in found.err[1:])


@pytest.mark.slow
@pytest.mark.parametrize("case, code, sentence", [
    ("required in forward", "F201", 'the all-gather of group "blocks.2" would be stock, and is not begun'),
    ("required in backward", "F205", 'the reduce-scatter of group "blocks.1" would be stock, and is not begun'),
])
def test_where_plans_are_required_a_call_that_would_go_stock_raises_on_every_rank(job, case, code, sentence):
    """Nobody waits for anybody, `uninstall` works, and so does going on; what is trained then is what stock trains."""
    found = job("fsdp_fail.py", case, timeout_s=240)
    for rank in found.results[case]:
        for then in ("given back", "kept"):
            assert rank[then][0] == code and rank[then][1].endswith(sentence)
        assert rank["is_equal"] and rank["seen"] > 20


@pytest.mark.slow
def test_ranks_that_use_different_parameters_stop_with_their_names(job):
    """pytorch#158719 (row 61): without the option stock hangs or gives wrong gradients."""
    found = job("fsdp_fail.py", "other gradients", timeout_s=120)
    assert found.late == () and all(code > 0 for code in found.codes), str(found)
    for r, text in enumerate(found.err):
        assert "F012" in text and "without a gradient of p1.weight" in text and "rank 0: the reduce-scatter of root, by its plan" in text, f"rank {r}: {text[-2000:]}"


def until_signalled(job: Callable, case: str) -> tuple[object, float]:
    """A job in which rank 2 is stopped or killed; gives it, and how long the others took after that."""
    seconds = []

    def watch(ranks) -> None:
        _, state = os.waitpid(ranks.all[2].pid, os.WUNTRACED)
        start = time.monotonic()
        if not os.WIFSTOPPED(state):
            ranks.all[2].returncode = os.waitstatus_to_exitcode(state)
        for r in (0, 1, 3):
            ranks.all[r].wait(timeout=DEADLINE_S + 30)
        seconds.append(time.monotonic() - start)
        ranks.all[2].kill()

    found = job("fsdp_fail.py", case, timeout_s=240, during=watch)
    return found, seconds[0]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["stopped", "killed"])
def test_a_rank_that_is_silent_is_named_by_the_others_who_leave(job, case):
    """pytorch#97191 (row 45). A killed one is noticed at once, a stopped one by the deadline; then Python ends three processes on two cores. No memory with a name is left."""
    before = set(os.listdir("/dev/shm"))
    found, seconds = until_signalled(job, case)
    assert found.codes[2] == -signal.SIGKILL and all(found.codes[r] > 0 for r in (0, 1, 3)), str(found)
    assert seconds < DEADLINE_S + 20
    for r in (0, 1, 3):
        assert "R001" in found.err[r] and "missing: rank 0.2" in found.err[r], f"rank {r}: {found.err[r][-2000:]}"
    text = "".join(found.err)
    assert "silent: rank 0.2" in text if case == "stopped" else "the process of rank 0.2" in text
    assert set(os.listdir("/dev/shm")) <= before


@pytest.mark.slow
def test_after_a_collective_that_stopped_the_model_is_given_back(job):
    """Nobody waits for the rank that is gone, and FSDP2 has all of its own again: the ranks look at it themselves."""
    found = job("fsdp_fail.py", "left by a killed rank", timeout_s=120)
    assert found.codes == (7, 7, -signal.SIGKILL, 7), str(found)
    for r in (0, 1, 3):
        name, seconds = found.out[r].splitlines()[1].split()
        assert name == "TidecError" and float(seconds) < 5


def until_sleeping(pid: int) -> None:
    """Until the process sleeps in a wait of a node or on the board, between two looks: in the system call clock_nanosleep."""
    start = time.monotonic()
    while Path(f"/proc/{pid}/syscall").read_text().split()[0] != CLOCK_NANOSLEEP:
        assert time.monotonic() < start + 20


@pytest.mark.slow
def test_a_rank_that_waits_for_a_silent_one_is_interrupted_from_the_keyboard(job):
    """Long before the deadline of 60 s; the others hear of it."""
    if not CLOCK_NANOSLEEP:
        pytest.skip(f"no number of clock_nanosleep is known on {platform.machine()}")
    seconds = []

    def watch(ranks) -> None:
        assert os.WIFSTOPPED(os.waitpid(ranks.all[2].pid, os.WUNTRACED)[1])
        start = time.monotonic()
        until_sleeping(ranks.all[0].pid)
        os.kill(ranks.all[0].pid, signal.SIGINT)
        for r in (0, 1, 3):
            ranks.all[r].wait(timeout=30)
        seconds.append(time.monotonic() - start)
        ranks.all[2].kill()

    found = job("fsdp_fail.py", "left by a stopped rank", timeout_s=120, during=watch)
    assert found.codes == (7, 7, -signal.SIGKILL, 7) and seconds[0] < 20, str(found)
    assert [found.out[r].splitlines()[1].split()[0] for r in (0, 1, 3)] == ["KeyboardInterrupt", "TidecError", "TidecError"]


def parted(job: Callable, case: str, interrupt: Callable[[list], None] = lambda _: None) -> tuple[object, list[dict], float]:
    """A job in which rank 2 is stopped and the others leave; gives it, what they said, and how long they took after rank 2 was."""
    seconds = []

    def watch(ranks) -> None:
        assert os.WIFSTOPPED(os.waitpid(ranks.all[2].pid, os.WUNTRACED)[1])
        start = time.monotonic()
        interrupt([ranks.all[r] for r in (0, 1, 3)])
        for r in (0, 1, 3):
            ranks.all[r].wait(timeout=45)
        seconds.append(time.monotonic() - start)
        ranks.all[2].kill()

    found = job("fsdp_fail.py", case, timeout_s=120, during=watch)
    assert found.codes == (7, 7, -signal.SIGKILL, 7), str(found)
    return found, [json.loads(found.out[r].splitlines()[-1]) for r in (0, 1, 3)], seconds[0]


@pytest.mark.slow
def test_a_rank_interrupted_between_steps_does_not_wait_for_a_silent_one(job):
    """It is in Python, with no wait that could hear of it; those that go on are told by its leaving, long before the deadline of 60 s."""
    _, (first, *others), seconds = parted(job, "interrupted between steps")
    assert first["reason"] == "KeyboardInterrupt" and re.search(r"F012.*\n.*rank 0: tidec.uninstall; rank [13]: the all-gather of root, by its plan", first["said"])
    assert all(found["reason"] == "TidecError" and found["said"] == "" for found in others), others
    assert seconds < 30


@pytest.mark.slow
def test_uninstall_ends_at_the_deadline_and_names_the_silent_rank(job):
    _, ranks, _ = parted(job, "silent at the end")
    for found in ranks:
        assert re.search(f"R001.*rank 2 does not come to tidec.uninstall in {DEADLINE_S:g} s\\n", found["said"])
        assert "rank 0: tidec.uninstall; rank 1: tidec.uninstall; rank 2: the reduce-scatter of root, by its plan; rank 3: tidec.uninstall" in found["said"]
        assert DEADLINE_S <= found["seconds"] < DEADLINE_S + 10


@pytest.mark.slow
def test_uninstall_that_waits_for_a_silent_rank_is_interrupted_from_the_keyboard(job):
    """Long before its deadline of 60 s; FSDP2 has all of its own again, the ranks look at that themselves."""
    if not CLOCK_NANOSLEEP:
        pytest.skip(f"no number of clock_nanosleep is known on {platform.machine()}")

    def interrupt(processes: list) -> None:
        for process in processes:
            until_sleeping(process.pid)
            os.kill(process.pid, signal.SIGINT)

    _, ranks, seconds = parted(job, "interrupted at the end", interrupt)
    assert all(found["said"] == "KeyboardInterrupt" for found in ranks) and seconds < 30, (ranks, seconds)


@pytest.mark.slow
def test_a_rank_that_is_silent_where_a_plan_is_opened_is_named(job):
    """Gradients that FSDP2 kept have a plan of their own, which all ranks open in the middle of a step."""
    found, seconds = until_signalled(job, "silent where a plan is opened")
    assert all(found.codes[r] > 0 for r in (0, 1, 3)) and seconds < DEADLINE_S + 20, str(found)
    for r in (0, 1, 3):
        assert re.search(f"R001.*rank 2 does not come to the opening of plan [0-9a-f]{{12}} in {DEADLINE_S:g} s", found.err[r]), f"rank {r}: {found.err[r][-2000:]}"


@pytest.mark.slow
def test_interrupted_from_the_keyboard_all_ranks_leave(job):
    found = job("fsdp_fail.py", "interrupted", timeout_s=120)
    assert found.late == () and all(code != 0 for code in found.codes), str(found)
    assert all("KeyboardInterrupt" in text or "R001" in text for text in found.err)
