"""A lock is held by one, or shared by many, and by nobody who is dead."""
from __future__ import annotations

import errno
import fcntl
import os
import signal

import pytest

from tidec.cache.locks import State, make, own, share


@pytest.fixture
def file(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file"


def test_readers_share_and_keep_a_remover_out(file):
    with share(file) as one, share(file) as two, own(file) as remover:
        assert (one.state, two.state, remover.state) == (State.HELD, State.HELD, State.BUSY)
    with own(file) as remover, share(file) as reader, own(file) as other:
        assert (remover.state, reader.state, other.state) == (State.HELD, State.BUSY, State.BUSY)


def test_a_new_file_is_made_once(tmp_path):
    with make(tmp_path / "new") as one, make(tmp_path / "new") as two:
        assert (one.state, two.state) == (State.HELD, State.BUSY)
    with make(tmp_path / "new") as later:
        assert later.state is State.BUSY


def test_a_process_that_was_killed_holds_nothing(file, forked):
    def die():
        assert own(file).state is State.HELD
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.WTERMSIG(forked(die)) == signal.SIGKILL
    with own(file) as lock:
        assert lock.state is State.HELD


def test_a_file_that_is_not_there_or_is_a_link_has_no_lock(tmp_path, file):
    (tmp_path / "link").symlink_to(file)
    assert own(tmp_path / "none").state is share(file / "under").state is State.ABSENT
    assert own(tmp_path / "link").state is State.UNLOCKABLE


@pytest.mark.parametrize("take", [share, own])
def test_a_file_that_was_replaced_between_open_and_lock_is_absent(file, take, monkeypatch):
    real = fcntl.flock

    def late(descriptor, kind):
        file.unlink()
        file.write_text("another")
        real(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", late)
    assert take(file).state is State.ABSENT


def test_a_file_that_was_removed_between_making_and_locking_is_absent(tmp_path, monkeypatch):
    real = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, kind: ((tmp_path / "new").unlink(), real(descriptor, kind)))
    assert make(tmp_path / "new").state is State.ABSENT


def test_a_file_system_without_locks_is_said(file, monkeypatch):
    def none(descriptor, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "flock", none)
    assert {take(file).state for take in (share, own)} == {State.UNLOCKABLE}
    assert len(os.listdir("/proc/self/fd")) == before
