"""Folders of one's own, and writing whole or not at all."""
from __future__ import annotations

import os
import stat

import pytest

from tidec.cache.folder import private_folder, write_aside
from tidec.errors import Exit, TidecError


def refusal(call, *args, **kwargs):
    with pytest.raises(TidecError) as caught:
        call(*args, **kwargs)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_missing_folder_is_made_for_its_user_only(tmp_path):
    made = private_folder(tmp_path / "a" / "b" / "tidec")
    assert stat.S_IMODE(os.lstat(made).st_mode) == 0o700


def test_a_link_is_refused(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    d = refusal(private_folder, tmp_path / "link")
    assert d.code == "C003" and "symbolic link" in d.reason


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    d = refusal(private_folder, tmp_path)
    assert d.code == "C003" and "not to you (4242)" in d.reason


def test_a_folder_that_others_can_write_is_refused(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    d = refusal(private_folder, tmp_path / "open")
    assert d.code == "C003" and "0777" in d.reason and "chmod 700" in d.help


def test_a_cache_under_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TidecError) as caught:
        private_folder(tmp_path / "file" / "tidec")
    assert caught.value.exit is Exit.ENVIRONMENT
    assert refusal(private_folder, tmp_path / "file").code == "E003"


def test_a_file_is_written_whole(tmp_path):
    write_aside(tmp_path / "a", b"one")
    write_aside(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two" and names(tmp_path) == ["a"]


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path, full_disk):
    write_aside(tmp_path / "a", b"one")
    with full_disk(), pytest.raises(OSError):
        write_aside(tmp_path / "a", b"longer than the disk")
    assert (tmp_path / "a").read_bytes() == b"one" and names(tmp_path) == ["a"]
