"""A kept proof is what was put, or it is nothing; a bundle is kept under its digest."""
from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidec.cache.store import keep_bundle, open_proofs
from tidec.errors import TidecError


def entry(store):
    (file,) = store.folder.iterdir()
    return file


def test_what_was_put_is_given_back(tmp_path):
    store = open_proofs(tmp_path / "cache", "prover 1")
    assert store.get("class a") == ""
    store.put("class a", '{"verdict": "proved", "name": "\u00e9\n"}')
    assert open_proofs(tmp_path / "cache", "prover 1").get("class a") == '{"verdict": "proved", "name": "\u00e9\n"}'
    assert (store.hits, store.misses, store.notes) == (0, 1, [])


def test_another_class_or_prover_has_its_own_entries(tmp_path):
    open_proofs(tmp_path / "cache", "prover 1").put("class a", "x")
    assert open_proofs(tmp_path / "cache", "prover 1").get("class b") == ""
    assert open_proofs(tmp_path / "cache", "prover 2").get("class a") == ""


@pytest.mark.parametrize("damage", [
    lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: bytes([b[0] ^ 1]) + b[1:], lambda b: b[:-1], lambda b: b"", lambda b: b + b"\0", lambda b: b"\xff\xfe" + b,
], ids=["last byte", "first byte", "cut", "empty", "longer", "no UTF-8"])
def test_a_damaged_entry_is_ignored_with_a_note_and_replaced(tmp_path, damage):
    store = open_proofs(tmp_path / "cache", "prover")
    store.put("class", "the proof")
    file = entry(store)
    file.write_bytes(damage(file.read_bytes()))
    assert store.get("class") == ""
    assert [n.code for n in store.notes] == ["C004"] and store.misses == 1
    store.put("class", "the proof")
    assert open_proofs(tmp_path / "cache", "prover").get("class") == "the proof"


def test_an_entry_under_another_name_is_no_proof(tmp_path):
    store = open_proofs(tmp_path / "cache", "prover")
    store.put("class a", "the proof of a")
    file = entry(store)
    store.put("class b", "the proof of b")
    (other,) = set(store.folder.iterdir()) - {file}
    file.replace(other)
    assert store.get("class b") == "" and [n.code for n in store.notes] == ["C004"]


def test_an_entry_that_is_a_folder_is_ignored(tmp_path):
    store = open_proofs(tmp_path / "cache", "prover")
    store.put("class", "x")
    file = entry(store)
    file.unlink()
    file.mkdir()
    assert store.get("class") == "" and [n.code for n in store.notes] == ["C004"]


def test_a_store_that_cannot_be_written_says_so_once(tmp_path):
    (tmp_path / "file").write_text("")
    store = open_proofs(tmp_path / "file" / "cache", "prover")
    assert store.get("class") == ""
    store.put("class", "x")
    store.put("another class", "x")
    assert [n.code for n in store.notes] == ["E003"]


def test_a_full_disk_costs_a_note(tmp_path, full_disk):
    store = open_proofs(tmp_path / "cache", "prover")
    with full_disk():
        store.put("class", "longer than the disk")
    assert [n.code for n in store.notes] == ["E003"] and list(store.folder.iterdir()) == []


@pytest.mark.parametrize("name", ["cache", "cache/proofs"])
def test_a_store_behind_a_link_is_refused(tmp_path, name):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / name).parent.mkdir(mode=0o700, exist_ok=True)
    (tmp_path / name).symlink_to(tmp_path / "real")
    with pytest.raises(TidecError) as caught:
        open_proofs(tmp_path / "cache", "prover")
    assert caught.value.diagnostics[0].code == "C003"


@dataclass(frozen=True)
class Bundle:
    path: Path
    digest: str


def bundle(text, digest="d" * 64):
    def write(folder):
        folder.mkdir()
        (folder / "manifest.json").write_text(text)
        return Bundle(folder, digest)

    return write


def test_a_bundle_is_kept_under_its_digest_and_once(tmp_path):
    kept, notes = keep_bundle(tmp_path / "cache", bundle("x"))
    place = kept.path
    assert place == tmp_path / "cache" / ("d" * 64) and notes == ()
    stamp = os.stat(place).st_ino
    assert keep_bundle(tmp_path / "cache", bundle("x")) == (kept, ())
    assert os.stat(place).st_ino == stamp and sorted(p.name for p in place.parent.iterdir()) == ["d" * 64]


@pytest.mark.parametrize("damage", [lambda p: (p / "manifest.json").write_text("y"), lambda p: (p / "more").write_text(""), lambda p: (p / "manifest.json").unlink()])
def test_a_damaged_bundle_is_replaced_with_a_note(tmp_path, damage):
    place = keep_bundle(tmp_path / "cache", bundle("x"))[0].path
    damage(place)
    again, notes = keep_bundle(tmp_path / "cache", bundle("x"))
    assert again.path == place and [n.code for n in notes] == ["C004"]
    assert [(p.name, p.read_text()) for p in place.iterdir()] == [("manifest.json", "x")]
    assert sorted(p.name for p in place.parent.iterdir()) == ["d" * 64]


def test_a_bundle_that_cannot_be_written_leaves_nothing(tmp_path):
    def write(folder):
        folder.mkdir()
        raise OSError(28, "No space left on device")

    with pytest.raises(TidecError) as caught:
        keep_bundle(tmp_path / "cache", write)
    assert caught.value.diagnostics[0].code == "E003" and list((tmp_path / "cache").iterdir()) == []
