"""A bundle is kept under its digest, once, and never half; one that was changed is an error."""
from __future__ import annotations

import errno
import os
import shutil

import pytest

from tidec.cache import store as module
from tidec.cache.entry import check_entry
from tidec.cache.key import Cache
from tidec.cache.locks import own, share
from tidec.cache.store import find_entry, keep_bundle
from tidec.cache.workspace import WORK
from tidec.errors import Diagnostic, TidecError


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def names(folder):
    return sorted(p.name for p in folder.iterdir() if p.name != WORK)


def files(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def nothing_is_left(cache):
    return not os.path.lexists(cache.folder / WORK) or os.listdir(cache.folder / WORK) == []


def test_a_bundle_is_kept_under_its_digest_and_once(cache, by_hand):
    kept = keep_bundle(cache, by_hand("x"))
    assert kept.path == cache.folder / kept.digest and check_entry(kept.path, kept.digest)
    stamp = os.stat(kept.path).st_ino
    assert keep_bundle(cache, by_hand("x")) == kept
    assert os.stat(kept.path).st_ino == stamp and names(cache.folder) == [kept.digest] and nothing_is_left(cache)
    other = keep_bundle(cache, by_hand("y"))
    assert names(cache.folder) == sorted((kept.digest, other.digest))


def test_using_a_bundle_again_counts_as_its_last_use(cache, by_hand):
    kept = keep_bundle(cache, by_hand())
    os.utime(kept.path, (0, 1000))
    keep_bundle(cache, by_hand())
    assert os.stat(kept.path).st_mtime > 10**9


@pytest.mark.parametrize(("name", "damage"), [
    ("ask.json", lambda p: (p / "ask.json").write_text("y")), ("more", lambda p: (p / "more").write_text("")), ("manifest.json", lambda p: (p / "manifest.json").unlink()),
    ("manifest.json", lambda p: (shutil.rmtree(p), p.mkdir())), ("", lambda p: (shutil.rmtree(p), p.write_text(""))), ("", lambda p: (shutil.rmtree(p), p.symlink_to(p.parent / WORK))),
], ids=["byte", "more", "no manifest", "empty", "file", "link"])
def test_a_changed_bundle_is_an_error_and_replaced_only_by_force(name, damage, cache, by_hand, refusal):
    place = keep_bundle(cache, by_hand()).path
    whole = files(place)
    damage(place)
    d = refusal(keep_bundle, cache, by_hand())
    assert d.code == "C001" and d.sentence.startswith((name or place.name) + " of the kept bundle") and f"rm -r {place}" in d.help and "--force" in d.help
    assert files(place) != whole and nothing_is_left(cache)
    assert keep_bundle(cache, by_hand(), is_forced=True).path == place
    assert files(place) == whole and not place.is_symlink() and names(cache.folder) == [place.name] and nothing_is_left(cache)


def test_force_leaves_a_whole_bundle_alone(cache, by_hand):
    place = keep_bundle(cache, by_hand()).path
    stamp = os.stat(place).st_ino
    assert keep_bundle(cache, by_hand(), is_forced=True).path == place and os.stat(place).st_ino == stamp


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), TidecError(Diagnostic("V501", "line 3 differs", help="x"))])
def test_a_failed_build_is_never_published(error, cache, by_hand):
    def write(folder):
        by_hand()(folder)
        raise error

    with pytest.raises(TidecError) as caught:
        keep_bundle(cache, write)
    assert caught.value.diagnostics[0].code == ("V501" if isinstance(error, TidecError) else "E003")
    assert names(cache.folder) == [] and nothing_is_left(cache)


def test_a_full_disk_says_so_and_leaves_nothing(cache, by_hand, refusal):
    def write(folder):
        folder.mkdir()
        raise OSError(errno.ENOSPC, "No space left on device")

    d = refusal(keep_bundle, cache, write)
    assert d.code == "E003" and "full" in d.sentence and "TIDEC_CACHE_DIR" in d.help and "-o DIR" in d.help
    assert names(cache.folder) == [] and nothing_is_left(cache)


def test_the_message_of_the_emitter_says_the_variable_too(cache, refusal):
    def write(folder):
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as problem:
            raise TidecError(Diagnostic("E003", f"{folder} cannot be written", help="give another folder with -o DIR")) from problem

    d = refusal(keep_bundle, cache, write)
    assert WORK not in d.sentence and "TIDEC_CACHE_DIR" in d.help


def test_a_library_is_not_kept_where_none_can_be_loaded(cache, by_hand, monkeypatch, refusal):
    real = os.statvfs("/")
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*real[:8], os.ST_NOEXEC, real.f_namemax)))
    d = refusal(keep_bundle, cache, by_hand(lib=b"so"))
    assert d.code == "E005" and names(cache.folder) == []
    assert keep_bundle(cache, by_hand()).path.is_dir()


def test_a_bundle_with_libraries_takes_the_place_of_one_without(cache, by_hand):
    plain = keep_bundle(cache, by_hand())
    built = keep_bundle(cache, by_hand(lib=b"so"))
    assert built.path == plain.path and (built.path / "lib" / "host-x86_64.so").read_bytes() == b"so"
    assert keep_bundle(cache, by_hand()).path == built.path and (built.path / "lib").is_dir()
    keep_bundle(cache, by_hand(lib=b"another so"))
    assert (built.path / "lib" / "host-x86_64.so").read_bytes() == b"so" and nothing_is_left(cache)


def test_a_bundle_that_is_being_read_keeps_its_place(cache, by_hand):
    plain = keep_bundle(cache, by_hand())
    stamp = os.stat(plain.path).st_ino
    with share(plain.path / "manifest.json"):
        assert keep_bundle(cache, by_hand(lib=b"so")).path == plain.path
    assert os.stat(plain.path).st_ino == stamp and not (plain.path / "lib").exists() and nothing_is_left(cache)


def test_the_loser_of_a_race_uses_the_winners_bundle(cache, by_hand):
    stamps = []

    def write(folder):
        made = by_hand()(folder)
        if not stamps:      # while this one writes, another comes first
            stamps.append(0)
            stamps[0] = os.stat(keep_bundle(cache, by_hand()).path).st_ino
        return made

    kept = keep_bundle(cache, write)
    assert stamps == [os.stat(kept.path).st_ino] and names(cache.folder) == [kept.digest] and nothing_is_left(cache)


def test_the_winner_may_come_between_the_look_and_the_rename(cache, by_hand, monkeypatch):
    real, rivals = os.rename, []

    def rename(source, target):
        if not rivals and os.fspath(target).startswith(os.fspath(cache.folder)) and len(os.path.basename(target)) == 64:
            rivals.append(0)
            rivals[0] = os.stat(keep_bundle(cache, by_hand()).path).st_ino
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    kept = keep_bundle(cache, by_hand())
    assert rivals == [os.stat(kept.path).st_ino] and names(cache.folder) == [kept.digest]


# ---- layers

@pytest.fixture
def layered(cache, by_hand, tmp_path):
    """A cache with a layer that holds the bundle of "x"."""
    kept = keep_bundle(Cache(tmp_path / "layer"), by_hand("x"))
    (tmp_path / "layer").chmod(0o755)
    return Cache(cache.folder, (tmp_path / "none", tmp_path / "layer")), kept


def test_a_bundle_of_a_layer_is_used_where_it_lies_and_not_written(layered, by_hand, tmp_path):
    cache, kept = layered
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "layer").rglob("*")}
    assert keep_bundle(cache, by_hand("x")).path == kept.path and names(cache.folder) == []
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "layer").rglob("*")} == before
    assert keep_bundle(cache, by_hand("y")).path.parent == cache.folder


def test_the_own_folder_comes_before_layers(layered, by_hand):
    cache, kept = layered
    own = keep_bundle(Cache(cache.folder), by_hand("x"))
    assert own.path != kept.path and keep_bundle(cache, by_hand("x")).path == own.path


def test_a_changed_bundle_of_a_layer_is_an_error_and_force_makes_an_own_one(layered, by_hand, refusal):
    cache, kept = layered
    (kept.path / "ask.json").write_text("y")
    d = refusal(keep_bundle, cache, by_hand("x"))
    assert d.code == "C001" and str(kept.path) in d.sentence and names(cache.folder) == []
    assert keep_bundle(cache, by_hand("x"), is_forced=True).path == cache.folder / kept.digest
    assert (kept.path / "ask.json").read_text() == "y"


def test_a_bundle_of_a_layer_that_others_can_write_is_refused(layered, by_hand, refusal):
    cache, kept = layered
    (kept.path / "ask.json").chmod(0o666)
    d = refusal(keep_bundle, cache, by_hand("x"))
    assert d.code == "C003" and "ask.json" in d.sentence


def test_libraries_that_a_layer_lacks_are_kept_in_the_own_folder(layered, by_hand):
    cache, kept = layered
    own = keep_bundle(cache, by_hand("x", lib=b"so"))
    assert own.path == cache.folder / kept.digest and not (kept.path / "lib").exists()


# ---- network file systems

@pytest.fixture
def unseen(cache, monkeypatch):
    """`unseen(seconds)`: looking at an entry by its name says for so long that it is absent, by a clock that only waiting moves; gives the clock."""

    def hide(seconds):
        clock = [100.0]
        real = {name: getattr(os, name) for name in ("open", "lstat", "stat")}

        def looking(name):
            def look(path, *args, **rest):
                text = os.fspath(path) if not isinstance(path, int) else ""
                is_entry = text.startswith(f"{cache.folder}/") and len(text.removeprefix(f"{cache.folder}/").split("/")[0]) == 64
                if is_entry and clock[0] < 100.0 + seconds:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                return real[name](path, *args, **rest)

            return look

        for name in real:
            monkeypatch.setattr(os, name, looking(name))
        monkeypatch.setattr(module, "monotonic", lambda: clock[0])
        monkeypatch.setattr(module, "sleep", lambda s: clock.__setitem__(0, clock[0] + s))
        return clock

    return hide


def test_a_winner_that_is_not_seen_for_some_seconds_is_waited_for(cache, by_hand, unseen):
    kept = keep_bundle(cache, by_hand())
    clock = unseen(5.0)
    assert keep_bundle(cache, by_hand()) == kept and 5.0 <= clock[0] - 100.0 < 5.1
    assert names(cache.folder) == [kept.digest] and nothing_is_left(cache)


def test_a_winner_that_is_never_seen_costs_a_spare(cache, by_hand, unseen):
    kept = keep_bundle(cache, by_hand())
    whole = files(kept.path)
    clock = unseen(1e9)
    spare = keep_bundle(cache, by_hand())
    assert module.VISIBLE_S <= clock[0] - 100.0 < module.VISIBLE_S + 0.1
    assert spare.path.name.startswith(f"{kept.digest}.") and files(spare.path) == whole and nothing_is_left(cache)


def test_a_rename_that_was_done_and_says_that_it_was_not_counts_as_done(cache, by_hand, monkeypatch):
    real = os.rename

    def rename(source, target):
        real(source, target)
        if len(os.path.basename(target)) == 64:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)

    monkeypatch.setattr(os, "rename", rename)
    kept = keep_bundle(cache, by_hand())
    assert kept.path.name == kept.digest and check_entry(kept.path, kept.digest) and nothing_is_left(cache)


@pytest.fixture
def clock(monkeypatch):
    """A clock that only waiting moves; `clock[1:]` are what to call at its ticks."""
    ticks = [100.0]

    def wait(seconds):
        ticks[0] += seconds
        if ticks[1:]:
            ticks.pop(1)()

    monkeypatch.setattr(module, "monotonic", lambda: ticks[0])
    monkeypatch.setattr(module, "sleep", wait)
    return ticks


def test_an_entry_that_is_being_removed_is_waited_for_and_then_none(cache, by_hand, clock):
    kept = keep_bundle(cache, by_hand())
    assert find_entry(cache.folder, kept.digest).digest == kept.digest and find_entry(cache.folder, "0" * 64) is None
    with own(kept.path / "manifest.json"):
        assert find_entry(cache.folder, kept.digest) is None and module.VISIBLE_S <= clock[0] - 100.0 < module.VISIBLE_S + 0.1
    lock = own(kept.path / "manifest.json")
    clock.append(lambda: lock.__exit__())
    assert find_entry(cache.folder, kept.digest).digest == kept.digest and clock[1:] == []
    lock = own(kept.path / "manifest.json")
    clock += [lambda: kept.path.rename(cache.folder / "away"), lambda: lock.__exit__()]
    assert find_entry(cache.folder, kept.digest) is None and len(clock) == 2


def test_an_entry_that_was_moved_away_while_it_was_looked_at_is_none(cache, by_hand, monkeypatch, tmp_path, clock):
    kept = keep_bundle(cache, by_hand())
    real = module.share

    def late(file):
        kept.path.rename(tmp_path / "away")
        return real(file)

    monkeypatch.setattr(module, "share", late)
    assert find_entry(cache.folder, kept.digest) is None and clock[0] < 100.1


@pytest.mark.parametrize("is_atomic", [True, False])
def test_an_entry_that_was_replaced_while_it_was_looked_at_is_the_new_one(is_atomic, cache, by_hand, monkeypatch, clock):
    kept, looks = keep_bundle(cache, by_hand()), []
    real, exchanged = module.share, module._exchanged
    monkeypatch.setattr(module, "_exchanged", lambda one, other: is_atomic and exchanged(one, other))

    def late(file):
        looks.append(file)
        if len(looks) == 1:
            keep_bundle(cache, by_hand(lib=b"so"))
        return real(file)

    monkeypatch.setattr(module, "share", late)
    assert find_entry(cache.folder, kept.digest).built and clock[0] < 100.1 and nothing_is_left(cache)


def test_an_exchange_that_fails_for_another_reason_is_an_error(cache, by_hand, tmp_path):
    kept = keep_bundle(cache, by_hand())
    with pytest.raises(OSError, match="No such file"):
        module._exchanged(tmp_path / "none", kept.path)
