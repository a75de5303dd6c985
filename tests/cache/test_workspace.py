"""A builder's folder goes with it, however it ends; a living builder's stays."""
from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal

import pytest

from tidec.cache import workspace as module
from tidec.cache.workspace import WORK, is_dead, leftovers, sweep, workspace


def names(cache):
    return sorted(os.listdir(cache / WORK))


def killed_in(cache, *, what=lambda folder: (folder / "half").write_text("half")):
    def build():
        with workspace(cache) as folder:
            what(folder)
            os.kill(os.getpid(), signal.SIGKILL)

    return build


def test_a_workspace_is_empty_and_gone_afterwards(tmp_path):
    with workspace(tmp_path / "cache") as folder:
        assert folder.parent == tmp_path / "cache" / WORK and os.listdir(folder) == []
        (folder / "a").mkdir()
        (folder / "a" / "b").write_text("c")
    assert names(tmp_path / "cache") == []


def test_an_error_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), workspace(tmp_path) as folder:
        (folder / "half").write_text("half")
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_what_a_killed_builder_left_is_swept_by_the_next(tmp_path, forked):
    assert os.WTERMSIG(forked(killed_in(tmp_path))) == signal.SIGKILL
    (left,) = leftovers(tmp_path)
    assert len(names(tmp_path)) == 2 and is_dead(left) and (left / "half").read_text() == "half"
    with workspace(tmp_path) as folder:
        assert leftovers(tmp_path) == (folder,)
    assert names(tmp_path) == []


def test_a_living_builder_keeps_its_folder(tmp_path):
    with workspace(tmp_path) as one:
        (one / "mine").write_text("mine")
        assert not is_dead(one) and sweep(tmp_path) == 0
        with workspace(tmp_path) as two:
            assert leftovers(tmp_path) == tuple(sorted((one, two)))
        assert (one / "mine").read_text() == "mine"


def test_a_sweeper_that_was_killed_half_way_is_finished_by_the_next(tmp_path, forked, monkeypatch):
    forked(killed_in(tmp_path))
    (left,) = leftovers(tmp_path)
    left.with_name(f"{left.name}.lock").unlink()
    assert is_dead(left) and sweep(tmp_path) == len("half")
    assert names(tmp_path) == []
    forked(killed_in(tmp_path))
    (left,) = leftovers(tmp_path)
    shutil.rmtree(left)
    sweep(tmp_path)
    assert names(tmp_path) == []


def test_what_cannot_be_removed_keeps_its_lock_file_for_another_time(tmp_path, forked, monkeypatch):
    forked(killed_in(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda folder, ignore_errors: None)
        sweep(tmp_path)
        assert len(names(tmp_path)) == 2
    sweep(tmp_path)
    assert names(tmp_path) == []


def test_what_has_another_name_is_not_touched(tmp_path):
    with workspace(tmp_path):
        pass
    (tmp_path / WORK / "thesis").mkdir()
    (tmp_path / WORK / "notes.lock").write_text("")
    sweep(tmp_path)
    assert names(tmp_path) == ["notes.lock", "thesis"]


def test_another_hosts_leftovers_go_after_a_day(tmp_path, forked, monkeypatch):
    """Its locks may be unknown here; a builder is never at work for a day."""
    forked(killed_in(tmp_path))
    monkeypatch.setattr(module, "_host", lambda: "00000000")
    (left,) = leftovers(tmp_path)
    assert sweep(tmp_path) == 0 and not is_dead(left) and len(names(tmp_path)) == 2
    guard = left.with_name(f"{left.name}.lock")
    before = guard.stat().st_mtime
    os.utime(guard, (before, before - module.FOREIGN_AGE_S - 1))
    sweep(tmp_path)
    assert names(tmp_path) == []


def test_a_file_system_without_locks_is_built_on_and_never_swept(tmp_path, monkeypatch):
    def none(descriptor, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with workspace(tmp_path) as one, workspace(tmp_path) as two:
        assert one.is_dir() and two.is_dir() and sweep(tmp_path) == 0
    assert names(tmp_path) == []


def test_a_new_name_that_a_sweeper_takes_for_a_leftover_costs_another_name(tmp_path, monkeypatch):
    taken = []
    real = fcntl.flock

    def late(descriptor, kind):
        if not taken:
            (guard,) = (tmp_path / WORK).iterdir()
            taken.append(guard.name)
            guard.unlink()
        real(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", late)
    with workspace(tmp_path) as folder:
        assert f"{folder.name}.lock" not in taken and len(taken) == 1
    assert names(tmp_path) == []


def test_names_that_are_always_taken_end(tmp_path, monkeypatch, refusal):
    real = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, kind: ([p.unlink() for p in (tmp_path / WORK).iterdir()], real(descriptor, kind)))

    def enter():
        with workspace(tmp_path):
            pass

    assert refusal(enter).code == "E003"
