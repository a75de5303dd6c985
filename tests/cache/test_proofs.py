"""A kept proof is what was put, or it is nothing."""
from __future__ import annotations

import os

import pytest

from tidec.cache.key import Cache
from tidec.cache.proofs import open_proofs
from tidec.cache.workspace import WORK


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def nothing_is_left(cache):
    return not os.path.lexists(cache.folder / WORK) or os.listdir(cache.folder / WORK) == []


def entry(store):
    (file,) = store.folder.iterdir()
    return file


def test_what_was_put_is_given_back(cache):
    store = open_proofs(cache, "prover 1")
    assert store.get("class a") == ""
    store.put("class a", '{"verdict": "proved", "name": "\u00e9\n"}')
    assert open_proofs(cache, "prover 1").get("class a") == '{"verdict": "proved", "name": "\u00e9\n"}'
    assert (store.hits, store.misses, store.notes) == (0, 1, []) and nothing_is_left(cache)


def test_another_class_or_prover_has_its_own_entries(cache):
    open_proofs(cache, "prover 1").put("class a", "x")
    assert open_proofs(cache, "prover 1").get("class b") == ""
    assert open_proofs(cache, "prover 2").get("class a") == ""


@pytest.mark.parametrize("damage", [
    lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: bytes([b[0] ^ 1]) + b[1:], lambda b: b[:-1], lambda b: b"", lambda b: b + b"\0", lambda b: b"\xff\xfe" + b,
], ids=["last byte", "first byte", "cut", "empty", "longer", "no UTF-8"])
def test_a_damaged_proof_is_ignored_with_a_note_and_replaced(cache, damage):
    store = open_proofs(cache, "prover")
    store.put("class", "the proof")
    file = entry(store)
    file.write_bytes(damage(file.read_bytes()))
    assert store.get("class") == ""
    assert [n.code for n in store.notes] == ["C004"] and store.misses == 1
    store.put("class", "the proof")
    assert open_proofs(cache, "prover").get("class") == "the proof"


def test_a_proof_under_another_name_is_no_proof(cache):
    store = open_proofs(cache, "prover")
    store.put("class a", "the proof of a")
    file = entry(store)
    store.put("class b", "the proof of b")
    (other,) = set(store.folder.iterdir()) - {file}
    file.replace(other)
    assert store.get("class b") == "" and [n.code for n in store.notes] == ["C004"]


def test_a_proof_that_is_a_folder_is_ignored(cache):
    store = open_proofs(cache, "prover")
    store.put("class", "x")
    file = entry(store)
    file.unlink()
    file.mkdir()
    assert store.get("class") == "" and [n.code for n in store.notes] == ["C004"]


def test_a_store_that_cannot_be_written_says_so_once(tmp_path):
    (tmp_path / "file").write_text("")
    store = open_proofs(Cache(tmp_path / "file" / "cache"), "prover")
    assert store.get("class") == ""
    store.put("class", "x")
    store.put("another class", "x")
    assert [n.code for n in store.notes] == ["E003"]


def test_a_full_disk_costs_a_note(cache, full_disk):
    store = open_proofs(cache, "prover")
    with full_disk():
        store.put("class", "longer than the disk")
    assert [n.code for n in store.notes] == ["E003"] and list(store.folder.iterdir()) == [] and nothing_is_left(cache)


@pytest.mark.parametrize("name", ["cache", "cache/proofs"])
def test_a_store_behind_a_link_is_refused(tmp_path, name, refusal):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / name).parent.mkdir(mode=0o700, exist_ok=True)
    (tmp_path / name).symlink_to(tmp_path / "real")
    assert refusal(open_proofs, Cache(tmp_path / "cache"), "prover").code == "C003"


def test_a_proof_of_a_layer_is_found_checked_and_not_copied(cache, tmp_path):
    open_proofs(Cache(tmp_path / "layer"), "prover").put("class", "the proof")
    (tmp_path / "layer").chmod(0o755)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "layer").rglob("*")}
    store = open_proofs(Cache(cache.folder, (tmp_path / "none", tmp_path / "layer")), "prover")
    assert store.get("class") == "the proof" and store.notes == [] and not cache.folder.exists()
    (file,) = (tmp_path / "layer" / "proofs").iterdir()
    assert {p: p.stat().st_mtime_ns for p in before} == before
    file.write_bytes(file.read_bytes()[:-1])
    assert store.get("class") == "" and [n.code for n in store.notes] == ["C004"] and str(file) in store.notes[0].sentence
    store.put("class", "the proof, again")
    assert store.get("class") == "the proof, again" and file.read_bytes().endswith(b"the proo")


def test_proofs_of_a_layer_that_others_can_write_are_refused(cache, tmp_path, refusal):
    (tmp_path / "layer" / "proofs").mkdir(parents=True)
    (tmp_path / "layer" / "proofs").chmod(0o777)
    assert refusal(open_proofs, Cache(cache.folder, (tmp_path / "layer",)), "prover").code == "C003"
