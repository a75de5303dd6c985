"""Folders of one's own, and writing whole or not at all."""
from __future__ import annotations

import os
import resource
import stat

import pytest

from tidec.cache.folder import private_folder, write_aside, write_folder
from tidec.errors import Exit, TidecError


def refusal(call, *args, **kwargs):
    with pytest.raises(TidecError) as caught:
        call(*args, **kwargs)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def fill(text):
    def write(folder):
        folder.mkdir()
        (folder / "manifest.json").write_text(text)
        (folder / "sub").mkdir()
        (folder / "sub" / "a").write_text(text * 2)

    return write


@pytest.fixture
def full_disk():
    """No file can grow past 4 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


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
    with pytest.raises(OSError):
        write_aside(tmp_path / "a", b"longer than the disk")
    assert (tmp_path / "a").read_bytes() == b"one" and names(tmp_path) == ["a"]


def test_a_folder_is_written_where_none_or_an_empty_one_is(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty", "deep/er"):
        place = write_folder(tmp_path / name, fill("x"), force=False)
        assert place == tmp_path / name and names(place) == ["manifest.json", "sub"]
    assert names(tmp_path) == ["deep", "empty", "new"]


def test_a_bundle_is_replaced_only_by_force(tmp_path):
    out = tmp_path / "out"
    write_folder(out, fill("x"), force=False)
    assert refusal(write_folder, out, fill("y"), force=False).code == "C002"
    assert (out / "manifest.json").read_text() == "x"
    write_folder(out, fill("y"), force=True)
    assert (out / "manifest.json").read_text() == "y" and names(tmp_path) == ["out"]


def test_what_is_no_bundle_is_never_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    assert "other things than a bundle" in refusal(write_folder, tmp_path / "mine", fill("y"), force=True).sentence
    assert "is a file" in refusal(write_folder, tmp_path / "file", fill("y"), force=True).sentence
    assert names(tmp_path) == ["file", "mine"] and names(tmp_path / "mine") == ["thesis.tex"]


def test_a_link_to_a_folder_is_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert write_folder(tmp_path / "link", fill("x"), force=False) == tmp_path / "real"
    assert (tmp_path / "link").is_symlink()


def test_an_error_while_writing_leaves_nothing(tmp_path, full_disk):
    (tmp_path / "out").mkdir()
    assert refusal(write_folder, tmp_path / "out", fill("longer"), force=False).code == "E003"

    def interrupted(folder):
        folder.mkdir()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "out", interrupted, force=False)
    assert names(tmp_path) == ["out"] and names(tmp_path / "out") == []
