"""Files come to stand in their folder all at once, or not at all."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidec.emit.place import MANIFEST, place
from tidec.errors import Exit, TidecError

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = {MANIFEST: b"{}", "a.hpp": b"// a"}
OLD = {MANIFEST: b'{"schema": "tidec.bundle/1", "files": {"old.hpp": {}}}', "old.hpp": b""}


def refused(*args, **rest):
    with pytest.raises(TidecError) as caught:
        place(*args, **rest)
    return caught.value.diagnostics[0], caught.value.exit


def held(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.parametrize("out", ["new", "empty", "deep/er"])
def test_an_absent_or_empty_folder_is_filled(tmp_path, out):
    (tmp_path / "empty").mkdir()
    assert held(place(FILES, tmp_path / out, is_forced=False)) == FILES
    assert not any(p.name.startswith(".new") for p in tmp_path.rglob("*"))


def test_the_real_path_is_given_back(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert place(FILES, tmp_path / "link", is_forced=False) == Path(os.path.realpath(tmp_path / "real"))
    assert held(tmp_path / "real") == FILES


@pytest.mark.parametrize(("what", "force", "says"), [
    ("full", False, "other things"), ("full", True, "other things"), ("file", False, "is a file"), ("file", True, "is a file"), ("bundle", False, "--force"),
])
def test_what_stands_there_already_is_kept(tmp_path, what, force, says):
    for name in ("full", "bundle"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "mine").write_text("keep")
    (tmp_path / "bundle" / MANIFEST).write_bytes(OLD[MANIFEST])
    (tmp_path / "file").write_text("keep")
    diagnostic, code = refused(FILES, tmp_path / what, is_forced=force)
    assert diagnostic.code == "C002" and code is Exit.USAGE and says in diagnostic.sentence + diagnostic.help
    assert (tmp_path / "full" / "mine").read_text() == (tmp_path / "file").read_text() == "keep"
    assert (tmp_path / "bundle" / MANIFEST).read_bytes() == OLD[MANIFEST]


def test_force_replaces_a_bundle_and_leaves_nothing_of_it(tmp_path):
    place(OLD, tmp_path / "b", is_forced=False)
    (tmp_path / "b" / "lib").mkdir()
    assert held(place(FILES, tmp_path / "b", is_forced=True)) == FILES
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_nothing_changes_where_the_last_rename_fails(tmp_path, monkeypatch):
    place(OLD, tmp_path / "b", is_forced=False)
    real = os.rename

    def failing(src, dst):
        if Path(src).name == "bundle":
            raise OSError(28, "No space left on device")
        real(src, dst)

    monkeypatch.setattr(os, "rename", failing)
    diagnostic, code = refused(FILES, tmp_path / "b", is_forced=True)
    assert diagnostic.code == "E003" and code is Exit.ENVIRONMENT and "No space left" in diagnostic.reason
    assert [p.name for p in tmp_path.iterdir()] == ["b"] and held(tmp_path / "b") == OLD


def test_a_folder_that_cannot_be_made_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    diagnostic, code = refused(FILES, tmp_path / "file" / "b", is_forced=False)
    assert diagnostic.code == "E003" and code is Exit.ENVIRONMENT and diagnostic.help


def test_every_file_and_the_folder_are_synced_before_the_rename(tmp_path, monkeypatch):
    order = []
    real_sync, real_rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda d: (order.append(os.readlink(f"/proc/self/fd/{d}").rsplit("/", 1)[-1]), real_sync(d))[1])
    monkeypatch.setattr(os, "rename", lambda a, b: (order.append("rename"), real_rename(a, b))[1])
    place(FILES, tmp_path / "b", is_forced=False)
    assert sorted(order[:3]) == sorted([*FILES, "bundle"]) and order[3:] == ["rename", tmp_path.name]


def test_a_folder_that_only_looks_like_a_bundle_is_never_replaced(tmp_path):
    for name, manifest in (("app", '{"name": "my app"}'), ("list", "[]"), ("text", "no json"), ("other", '{"schema": "x/1", "files": {}}')):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "manifest.json").write_text(manifest, encoding="utf-8")
        (folder / "precious.js").write_text("keep", encoding="utf-8")
        with pytest.raises(TidecError, match="C002"):
            place({"manifest.json": b"{}"}, folder, is_forced=True)
        assert (folder / "precious.js").read_text(encoding="utf-8") == "keep"


def test_a_file_of_one_s_own_in_a_bundle_is_never_deleted(tmp_path):
    bundle = {"manifest.json": b'{"schema": "tidec.bundle/1", "files": {"a.hpp": {}}}', "manifest.sha256": b"", "a.hpp": b""}
    place(bundle, tmp_path / "b", is_forced=False)
    place(bundle, tmp_path / "b", is_forced=True)
    (tmp_path / "b" / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(TidecError, match="does not list 'notes.txt'"):
        place(bundle, tmp_path / "b", is_forced=True)
    assert (tmp_path / "b" / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_a_pipe_in_the_place_of_a_manifest_is_no_bundle_and_nobody_waits_for_it(tmp_path):
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / MANIFEST)
    opened = subprocess.run([sys.executable, "-c", f"from pathlib import Path; from tidec.emit.place import check_free; check_free(Path({str(tmp_path / 'out')!r}), is_forced=True)"],
                            capture_output=True, text=True, timeout=30, env={**os.environ, "PYTHONPATH": os.fspath(ROOT)})
    assert "other things than a bundle" in opened.stderr
