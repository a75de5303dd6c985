"""Which bundles there are, and which one a few digits mean."""
from __future__ import annotations

import json

import pytest

from tidec.cache.key import Cache
from tidec.cache.listing import chosen, listed, resolve
from tidec.cache.store import keep_bundle


@pytest.fixture
def caches(tmp_path, by_hand):
    """Bundles one and two in the own folder, two and three in a layer."""
    own, layer = Cache(tmp_path / "own"), Cache(tmp_path / "layer")
    made = [keep_bundle(own, by_hand("one")), keep_bundle(own, by_hand("two", lib=b"so")), keep_bundle(layer, by_hand("two")), keep_bundle(layer, by_hand("three"))]
    layer.folder.chmod(0o755)
    return Cache(own.folder, (layer.folder,)), made


def test_own_bundles_come_before_those_of_layers(caches):
    cache, made = caches
    found = listed(cache)
    assert [b.path for b in found] == sorted(m.path for m in made[:2]) + sorted(m.path for m in made[2:])
    assert {b.path for b in found if b.is_built} == {made[1].path} and not any(b.is_spare for b in found)
    assert all(b.bytes == sum(p.stat().st_size for p in b.path.rglob("*") if p.is_file()) and b.topology == "" for b in found)


def test_what_a_bundle_says_of_itself_is_told(tmp_path, by_hand):
    cache = Cache(tmp_path / "own")
    made = keep_bundle(cache, by_hand(json.dumps({"topology": {"nodes": 3, "lanes": 2}})))
    manifest = json.loads((made.path / "manifest.json").read_text())
    (made.path / "manifest.json").write_text(json.dumps({**manifest, "groups": [1, 2], "plans": [1, 2, 3]}))
    (found,) = listed(cache)
    assert (found.topology, found.num_groups, found.num_plans) == ("3x2", 2, 3)


def test_digits_mean_the_one_bundle_that_begins_so(caches, refusal):
    cache, made = caches
    for bundle in (made[0], made[1], made[3]):
        assert resolve(cache, bundle.digest) == resolve(cache, bundle.digest[:8]) == bundle.path
    d = refusal(resolve, cache, "0" * 64)
    assert d.code == "C007" and str(cache.layers[0]) in d.reason
    for digits in ("", "abc", "xyzw", made[0].digest + "0", "../" + made[0].digest, made[0].digest.upper()):
        assert refusal(resolve, cache, digits).code == "C007"


def test_digits_that_mean_two_are_refused_with_both(caches, refusal):
    cache, made = caches
    twin = made[0].digest[:12] + "f" * 52
    made[1].path.rename(cache.folder / twin)
    d = refusal(resolve, cache, made[0].digest[:8])
    assert d.code == "C007" and d.reason.count("...") == 2
    assert resolve(cache, twin[:13]) == cache.folder / twin


def test_a_bundle_of_a_layer_that_others_can_write_is_not_given(caches, refusal):
    cache, made = caches
    (made[3].path / "ask.json").chmod(0o666)
    assert refusal(resolve, cache, made[3].digest).code == "C003"


def test_without_digits_all_are_meant_with_layers_or_without(caches):
    cache, made = caches
    assert chosen(cache, (), with_layers=False) == tuple(sorted(m.path for m in made[:2]))
    assert set(chosen(cache, (), with_layers=True)) == {m.path for m in made}
    assert chosen(cache, (made[3].digest, made[0].digest, made[3].digest[:6]), with_layers=False) == (made[3].path, made[0].path)


def test_a_cache_that_is_not_there_is_empty_and_one_of_others_is_refused(tmp_path, refusal):
    assert listed(Cache(tmp_path / "none")) == ()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert refusal(listed, Cache(tmp_path / "open")).code == "C003"
