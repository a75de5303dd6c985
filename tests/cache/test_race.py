"""Many processes on one cold store, some of them killed at any line: whole entries, one a key, and nothing left over."""
from __future__ import annotations

import json
import os
import random as randomness
import signal
import sys
import traceback
from hashlib import sha256
from pathlib import Path

import pytest

from tidec.cache import store
from tidec.cache.entry import check_entry, entry_folders
from tidec.cache.key import Cache
from tidec.cache.libraries import build_kept
from tidec.cache.proofs import open_proofs, read_proof
from tidec.cache.store import find_entry, keep_bundle
from tidec.cache.workspace import WORK

KEYS = ("one", "two", "three")
ROOM = str(Path(store.__file__).parent)
DEADLINE_S = 60


def add_library(folder: Path) -> bool:
    if (folder / "lib").exists():
        return False
    (folder / "lib").mkdir()
    (folder / "lib" / "host.so").write_bytes(b"so" * 5000)
    build = json.dumps({"files": {"lib/host.so": {"size": 10000, "sha256": sha256(b"so" * 5000).hexdigest()}}}).encode()
    (folder / "build.json").write_bytes(build)
    (folder / "build.sha256").write_text(f"{sha256(build).hexdigest()}  build.json\n")
    return True


def work(cache: Cache, key: str, write, *, has_library: bool) -> None:
    """What a process does with the store: a proof is found or put, a bundle is kept, built and read back."""
    proofs = open_proofs(cache, "prover")
    assert proofs.get(key) in ("", f"the proof of {key}")
    proofs.put(key, f"the proof of {key}")
    assert proofs.get(key) == f"the proof of {key}" and proofs.notes == []
    bundle = keep_bundle(cache, write)
    path = build_kept(cache, bundle.path, add_library) if has_library else bundle.path
    assert path == cache.folder / bundle.digest
    # Another may be putting its own in this place just now; what is seen is whole.
    find_entry(cache.folder, bundle.digest)


def die_at(line: int):
    """A trace function that kills this process at the n-th line of the store that it comes to."""
    left = [line]

    def trace(frame, event, argument):
        if not frame.f_code.co_filename.startswith(ROOM):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def lines_of(call) -> int:
    """How many lines of the store a call runs through."""
    count = [0]

    def trace(frame, event, argument):
        count[0] += event == "line"
        return trace if frame.f_code.co_filename.startswith(ROOM) else None

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return count[0]


def start(gate: tuple[int, int], call, line: int) -> int:
    """A process that makes the call as soon as nobody holds the gate's other end. line: where it kills itself, 0 = nowhere."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.alarm(DEADLINE_S)
        os.close(gate[1])
        os.read(gate[0], 1)
        if line:
            sys.settrace(die_at(line))
        call()
        code = 0
    except BaseException:
        sys.settrace(None)
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


def round_of(cache: Cache, by_hand, random: randomness.Random, *, num: int, most: int) -> dict[str, int]:
    """One race: a third kills itself at some line, a third may be killed from outside at some moment, a third lives. Returns how many ended how.

    most: lines at which a process may kill itself, 0 = nobody is killed.
    """
    gate = os.pipe()
    jobs = {}
    for i in range(num):
        key, has_library = random.choice(KEYS), random.random() < 0.5
        line = random.randrange(1, most) if most and i % 3 == 0 else 0

        def call(key=key, has_library=has_library):
            work(cache, key, by_hand(key), has_library=has_library)

        jobs[start(gate, call, line)] = i
    victims = [child for child, i in jobs.items() if most and i % 3 == 1]
    random.shuffle(victims)
    os.close(gate[1])
    os.close(gate[0])
    # The seed says how soon the victims go, from all at once to hardly any before they are done.
    ended, chance = {}, 10 ** random.uniform(-4.5, -1.5)
    while len(ended) < num:
        child, status = os.waitpid(-1, os.WNOHANG if victims else 0)
        if child in jobs:
            ended[child] = status
            continue
        if victims and random.random() < chance:
            victim = victims.pop()
            if victim not in ended:
                os.kill(victim, signal.SIGKILL)
    ways = {"done": 0, "killed": 0}
    for child, status in ended.items():
        is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert is_killed and jobs[child] % 3 < 2 or status == 0, f"process {jobs[child]} ended with {status}"
        ways["killed" if is_killed else "done"] += 1
    return ways


def race(tmp_path: Path, by_hand, draws, *, num: int, seeds: range, is_deadly: bool = True) -> dict[str, int]:
    most = is_deadly and 1 + max(lines_of(lambda: work(Cache(tmp_path / "measured"), KEYS[0], by_hand(KEYS[0]), has_library=True)) for _ in range(2))
    digests = {key: keep_bundle(Cache(tmp_path / "measured"), by_hand(key)).digest for key in KEYS}
    total = {"done": 0, "killed": 0}
    for seed in seeds:
        cache = Cache(tmp_path / f"cache-{seed}")
        random = draws(seed)
        for way, count in round_of(cache, by_hand, random, num=num, most=most).items():
            total[way] += count
        # Every entry that is there is whole, and the next process to come needs no help and leaves nothing.
        for entry in entry_folders(cache.folder):
            check_entry(entry, entry.name)
        for key in KEYS:
            work(cache, key, by_hand(key), has_library=True)
        assert sorted(os.listdir(cache.folder)) == sorted([WORK, "proofs", *digests.values()]) and os.listdir(cache.folder / WORK) == []
        for digest in digests.values():
            assert check_entry(cache.folder / digest, digest).built
        proofs = sorted((cache.folder / "proofs").iterdir())
        assert sorted(map(read_proof, proofs)) == sorted(f"the proof of {key}" for key in KEYS)
    return total


def test_a_few_processes_that_race_and_die_leave_whole_entries(tmp_path, by_hand, draws):
    total = race(tmp_path, by_hand, draws, num=12, seeds=range(4))
    assert total["done"] >= 16 and total["killed"] >= 4


def test_processes_that_race_where_folders_cannot_be_exchanged_find_whole_entries(tmp_path, by_hand, draws, monkeypatch):
    monkeypatch.setattr(store, "_exchanged", lambda one, other: False)
    assert race(tmp_path, by_hand, draws, num=12, seeds=range(50, 56), is_deadly=False) == {"done": 72, "killed": 0}


@pytest.mark.slow
def test_32_processes_that_race_and_die_in_100_rounds_leave_whole_entries(tmp_path, by_hand, draws):
    total = race(tmp_path, by_hand, draws, num=32, seeds=range(1000, 1100))
    print(total)
    assert sum(total.values()) == 3200 and total["done"] >= 1000 and total["killed"] >= 1000
