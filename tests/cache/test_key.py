"""Where the cache and its layers are, and what changes a prover's identity."""
from __future__ import annotations

from pathlib import Path

import pytest

from tidec.cache import key


@pytest.mark.parametrize("asked, xdg, home, want", [
    ("/a/cache", "/x", "/home/u", "/a/cache"),
    ("", "/x", "/home/u", "/x/tidec"),
    ("", "", "/home/u", "/home/u/.cache/tidec"),
    ("", "not/absolute", "/home/u", "/home/u/.cache/tidec"),
])
def test_the_first_variable_that_is_set_says_where(asked, xdg, home, want):
    assert key.cache_folder(asked=asked, xdg=xdg, home=home) == Path(want)


def test_a_relative_cache_folder_counts_from_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert key.cache_folder(asked="here") == tmp_path / "here"


def test_layers_are_searched_in_the_order_in_which_they_are_named(tmp_path):
    for name in ("own", "a", "b"):
        (tmp_path / name).mkdir(mode=0o755)
    cache, notes = key.open_cache(tmp_path / "own", f"{tmp_path}/b:{tmp_path}/a::{tmp_path}/b:{tmp_path}/own")
    assert cache == key.Cache(tmp_path / "own", (tmp_path / "b", tmp_path / "a")) and notes == ()
    assert key.open_cache(tmp_path / "own", "") == (key.Cache(tmp_path / "own"), ())


def test_a_layer_that_is_not_there_is_left_out_and_told(tmp_path):
    (tmp_path / "a").mkdir(mode=0o755)
    cache, notes = key.open_cache(tmp_path / "own", f"{tmp_path}/none:{tmp_path}/a")
    assert cache.layers == (tmp_path / "a",) and [n.code for n in notes] == ["C006"] and str(tmp_path / "none") in notes[0].sentence


def test_a_relative_layer_is_refused(tmp_path, refusal):
    assert refusal(key.open_cache, tmp_path / "own", "shared/tidec").code == "P001"


def test_the_identity_is_the_same_twice_and_changes_with_the_solver(monkeypatch):
    before = key.prover_identity()
    assert key.prover_identity() == before and len(before) == 64
    monkeypatch.setattr("tidec.verify.solver.version", lambda: "0.0.1")
    assert key.prover_identity() != before


@pytest.mark.parametrize("room", ["index", "schedule", "verify"])
def test_the_identity_changes_with_a_byte_of_the_prover(room, tmp_path, monkeypatch):
    for r in ("index", "schedule", "verify", "cache"):
        (tmp_path / r).mkdir()
        (tmp_path / r / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(key, "__file__", str(tmp_path / "cache" / "key.py"))
    before = key.prover_identity()
    (tmp_path / "cache" / "a.py").write_text("x = 2\n")
    assert key.prover_identity() == before
    (tmp_path / room / "a.py").write_text("x = 2\n")
    assert key.prover_identity() != before
