"""A build of a kept bundle is there whole or not at all, and no other build is lost."""
from __future__ import annotations

import json
import os
import signal
from hashlib import sha256

import pytest

from tidec.cache import libraries as module
from tidec.cache.entry import check_entry
from tidec.cache.key import Cache
from tidec.cache.libraries import build_kept
from tidec.cache.locks import share
from tidec.cache.store import find_entry, keep_bundle
from tidec.cache.workspace import WORK


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def adds(target, *, text="so", watch=lambda: None):
    """A build of one library, which leaves those of other targets as they are."""

    def build(folder):
        name = f"lib/{target}.so"
        old = json.loads((folder / "build.json").read_bytes())["files"] if (folder / "build.json").exists() else {}
        if name in old:
            return False
        (folder / "lib").mkdir(exist_ok=True)
        (folder / name).write_text(text)
        watch()
        build = json.dumps({"files": {**old, name: {"size": len(text), "sha256": sha256(text.encode()).hexdigest()}}}).encode()
        (folder / "build.json").write_bytes(build)
        (folder / "build.sha256").write_text(f"{sha256(build).hexdigest()}  build.json\n")
        return True

    return build


def libraries(cache, digest):
    entry = find_entry(cache.folder, digest)
    return [f.name for f in entry.built if f.name.startswith("lib/")]


def test_a_build_comes_into_the_entry_and_is_found_again(cache, by_hand):
    kept = keep_bundle(cache, by_hand())
    assert build_kept(cache, kept.path, adds("host")) == kept.path and libraries(cache, kept.digest) == ["lib/host.so"]
    stamp = os.stat(kept.path).st_ino
    assert build_kept(cache, kept.path, adds("host")) == kept.path and os.stat(kept.path).st_ino == stamp
    assert build_kept(cache, kept.path, adds("nccl")) == kept.path and libraries(cache, kept.digest) == ["lib/host.so", "lib/nccl.so"]
    assert sorted(os.listdir(cache.folder)) == sorted([WORK, kept.digest]) and os.listdir(cache.folder / WORK) == []


def test_nobody_sees_a_half_build_and_a_kill_leaves_none(cache, by_hand, forked):
    kept = keep_bundle(cache, by_hand())

    def die():
        assert check_entry(kept.path, kept.digest).built == ()
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.WTERMSIG(forked(lambda: build_kept(cache, kept.path, adds("host", watch=die)))) == signal.SIGKILL
    assert check_entry(kept.path, kept.digest).built == ()
    assert build_kept(cache, kept.path, adds("host")) == kept.path and os.listdir(cache.folder / WORK) == []


def test_what_another_built_meanwhile_is_not_lost(cache, by_hand):
    kept = keep_bundle(cache, by_hand())
    times = []

    def rival():
        if not times:
            times.append(1)
            build_kept(cache, kept.path, adds("nccl"))

    assert build_kept(cache, kept.path, adds("host", watch=rival)) == kept.path
    assert libraries(cache, kept.digest) == ["lib/host.so", "lib/nccl.so"] and os.listdir(cache.folder / WORK) == []


def test_a_failed_build_leaves_the_entry_as_it_was(cache, by_hand):
    kept = keep_bundle(cache, by_hand())
    with pytest.raises(ZeroDivisionError):
        build_kept(cache, kept.path, adds("host", watch=lambda: 1 // 0))
    assert check_entry(kept.path, kept.digest).built == () and os.listdir(cache.folder / WORK) == []


def test_a_build_that_is_not_what_it_lists_is_refused(cache, by_hand, refusal):
    kept = keep_bundle(cache, by_hand())

    def build(folder):
        adds("host")(folder)
        (folder / "lib" / "host.so").write_text("!")
        return True

    assert refusal(build_kept, cache, kept.path, build).code == "C001" and check_entry(kept.path, kept.digest).built == ()


def test_a_build_of_a_layers_bundle_comes_into_the_own_folder(cache, by_hand, tmp_path):
    kept = keep_bundle(Cache(tmp_path / "layer"), by_hand())
    for path in (*kept.path.iterdir(), kept.path):
        path.chmod(0o555 if path.is_dir() else 0o444)
    found = build_kept(Cache(cache.folder, (tmp_path / "layer",)), kept.path, adds("host"))
    assert found == cache.folder / kept.digest and libraries(cache, kept.digest) == ["lib/host.so"] and not (kept.path / "lib").exists()
    assert os.stat(found).st_mode & 0o700 == 0o700


def test_a_bundle_of_another_place_is_built_where_it_stands(cache, by_hand, tmp_path):
    made = by_hand()(tmp_path / "b")
    assert build_kept(cache, made.path, adds("host")) == made.path and (made.path / "lib" / "host.so").is_file() and not cache.folder.exists()


def test_readers_that_do_not_leave_cost_a_copy(cache, by_hand, monkeypatch):
    kept = keep_bundle(cache, by_hand())
    clock = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module, "sleep", lambda s: clock.__setitem__(0, clock[0] + s))
    with share(kept.path / "manifest.json"):
        found = build_kept(cache, kept.path, adds("host"))
    assert found.name.startswith(f"{kept.digest}.") and check_entry(found, kept.digest).built and check_entry(kept.path, kept.digest).built == ()


def test_a_changed_bundle_is_not_built(cache, by_hand, refusal):
    kept = keep_bundle(cache, by_hand())
    (kept.path / "ask.json").write_text("!")
    assert refusal(build_kept, cache, kept.path, adds("host")).code == "C001"
