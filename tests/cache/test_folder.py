"""Folders of one's own and of others: which are trusted, and what is said of each that is not, or cannot be used."""
from __future__ import annotations

import errno
import os
import stat

import pytest

from tidec.cache.folder import check_closed, check_runnable, layer_folder, private_folder, sync_tree, unwritable
from tidec.errors import Exit, Level, TidecError


def test_a_missing_folder_is_made_for_its_user_only(tmp_path):
    made = private_folder(tmp_path / "a" / "b" / "tidec")
    assert stat.S_IMODE(os.lstat(made).st_mode) == 0o700


def test_a_link_is_refused(tmp_path, refusal):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    d = refusal(private_folder, tmp_path / "link")
    assert d.code == "C003" and "symbolic link" in d.reason and "TIDEC_CACHE_DIR" in d.help


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch, refusal):
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    d = refusal(private_folder, tmp_path)
    assert d.code == "C003" and "not to you (4242)" in d.reason and "TIDEC_CACHE_DIR" in d.help


def test_a_folder_that_others_can_write_is_refused(tmp_path, refusal):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    d = refusal(private_folder, tmp_path / "open")
    assert d.code == "C003" and "0777" in d.reason and "chmod 700" in d.help


def test_a_cache_under_a_file_cannot_be_made(tmp_path, refusal):
    (tmp_path / "file").write_text("")
    with pytest.raises(TidecError) as caught:
        private_folder(tmp_path / "file" / "tidec")
    assert caught.value.exit is Exit.ENVIRONMENT
    assert refusal(private_folder, tmp_path / "file").code == "E003"


@pytest.mark.parametrize(("number", "words"), [(errno.EACCES, "read-only for you"), (errno.EROFS, "read-only for you"), (errno.ENOSPC, "full"), (errno.EDQUOT, "full"), (errno.EIO, "")])
def test_what_cannot_be_written_is_told_apart(number, words, tmp_path):
    (d,) = unwritable(tmp_path, OSError(number, os.strerror(number))).diagnostics
    assert d.code == "E003" and str(tmp_path) in d.sentence and words in d.sentence and d.reason == os.strerror(number) and "TIDEC_CACHE_DIR" in d.help
    assert ("gc" in d.help) == (words == "full")


def test_a_layer_may_belong_to_anybody_but_only_its_owner_may_write_it(tmp_path, monkeypatch, refusal):
    layer = tmp_path / "layer"
    layer.mkdir(mode=0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert layer_folder(layer) is None
    for mode in (0o775, 0o757):
        layer.chmod(mode)
        d = refusal(layer_folder, layer)
        assert d.code == "C003" and f"{mode:04o}" in d.reason and "TIDEC_CACHE_PATH" in d.help


def test_a_layer_behind_a_link_is_refused(tmp_path, refusal):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert refusal(layer_folder, tmp_path / "link").code == "C003"


def test_a_layer_that_is_missing_or_cannot_be_read_is_left_out_with_a_warning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    notes = [layer_folder(tmp_path / name) for name in ("none", "file", "closed")]
    assert [(n.code, n.level) for n in notes] == [("C006", Level.WARNING)] * 3
    assert [n.reason.partition(" (")[0] for n in notes] == ["No such file or directory", "it is no folder", "you may not read it"]


@pytest.mark.parametrize("name", ["", "lib", "lib/host.so"])
def test_an_entry_of_a_layer_that_others_can_write_is_refused_by_name(name, tmp_path, refusal):
    (tmp_path / "e" / "lib").mkdir(parents=True)
    (tmp_path / "e" / "lib" / "host.so").write_text("")
    (tmp_path / "e" / "lib" / "link").symlink_to("/")       # a link has no mode of its own; the entry's check refuses it
    check_closed(tmp_path / "e")
    (tmp_path / "e" / name).chmod(0o777)
    d = refusal(check_closed, tmp_path / "e")
    assert d.code == "C003" and str(tmp_path / "e" / name) in d.sentence


def test_a_file_system_that_runs_nothing_is_said(tmp_path, monkeypatch, refusal):
    check_runnable(tmp_path)
    real = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*real[:8], real.f_flag | os.ST_NOEXEC, real.f_namemax)))
    d = refusal(check_runnable, tmp_path)
    assert d.code == "E005" and "noexec" in d.reason and "TIDEC_CACHE_DIR" in d.help


def test_all_of_a_tree_is_synced_the_inner_ones_first(tmp_path, monkeypatch):
    (tmp_path / "t" / "lib").mkdir(parents=True)
    for name in ("a", "lib/b"):
        (tmp_path / "t" / name).write_text(name)
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path)))
    sync_tree(tmp_path / "t")
    assert synced == ["t/lib/b", "t/lib", "t/a", "t"]
