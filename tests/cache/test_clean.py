"""What leaves the cache: the old and the least used, never what is being read."""
from __future__ import annotations

import os
import signal

import pytest

from tidec.cache.clean import Kind, clean, contents
from tidec.cache.key import Cache
from tidec.cache.locks import own, share
from tidec.cache.proofs import open_proofs
from tidec.cache.store import keep_bundle
from tidec.cache.workspace import WORK, workspace

NOW, DAY = 2_000_000_000.0, 86_400.0


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def kept(cache, by_hand):
    """Three bundles last used 3, 2 and 1 days ago, and a proof 2.5 days ago."""
    made = [keep_bundle(cache, by_hand(text)).path for text in ("one", "two", "three")]
    open_proofs(cache, "prover").put("class", "the proof")
    (proof,) = (cache.folder / "proofs").iterdir()
    for path, days in zip((*made, proof), (3, 2, 1, 2.5)):
        os.utime(path, (NOW, NOW - days * DAY))
    return (*made, proof)


def bytes_of(cache):
    return sum(i.bytes for i in contents(cache.folder))


def cleaned(cache, *, gone, max_bytes=None, older_than_s=None):
    """Clean, and hold that exactly these paths went, as a dry run had said."""
    before = bytes_of(cache)
    told = clean(cache.folder, max_bytes=max_bytes, older_than_s=older_than_s, now=NOW, is_dry=True)
    assert bytes_of(cache) == before
    done = clean(cache.folder, max_bytes=max_bytes, older_than_s=older_than_s, now=NOW)
    assert told == done and [i.path for i in done.removed] == list(gone) and not any(p.exists() for p in gone)
    assert bytes_of(cache) == done.kept_bytes and done.freed_bytes == before - done.kept_bytes and os.listdir(cache.folder / WORK) == []
    return done


def test_nothing_goes_where_nothing_is_asked(cache, kept):
    cleaned(cache, gone=())


def test_what_was_not_used_for_long_goes_in_order_of_use(cache, kept):
    one, two, three, proof = kept
    assert [i.kind for i in cleaned(cache, older_than_s=2.25 * DAY, gone=(one, proof)).removed] == [Kind.BUNDLE, Kind.PROOF]
    cleaned(cache, older_than_s=0.0, gone=(two, three))
    assert contents(cache.folder) == ()


def test_the_least_used_goes_until_the_rest_fits(cache, kept):
    one, two, three, proof = kept
    sizes = {i.path: i.bytes for i in contents(cache.folder)}
    cleaned(cache, max_bytes=sum(sizes.values()), gone=())
    cleaned(cache, max_bytes=sum(sizes.values()) - 1, gone=(one,))
    cleaned(cache, max_bytes=sizes[three], gone=(proof, two))
    cleaned(cache, max_bytes=0, gone=(three,))


def test_what_is_being_read_stays_and_is_told(cache, kept):
    one, two, _, _ = kept
    with share(one / "manifest.json"):
        for is_dry in (True, False):
            found = clean(cache.folder, max_bytes=None, older_than_s=1.5 * DAY, now=NOW, is_dry=is_dry)
            assert [i.path for i in found.in_use] == [one] and two in [i.path for i in found.removed]
    assert one.is_dir() and not two.exists()
    cleaned(cache, older_than_s=1.5 * DAY, gone=(one,))


def test_what_is_used_between_the_look_and_the_removal_stays(cache, kept, monkeypatch):
    one = kept[0]
    real = own

    def late(file):
        os.utime(one, (NOW, NOW))
        return real(file)

    monkeypatch.setattr("tidec.cache.clean.own", late)
    found = clean(cache.folder, max_bytes=None, older_than_s=2.75 * DAY, now=NOW)
    assert found.removed == () and [i.path for i in found.in_use] == [one] and one.is_dir()


def test_what_another_removed_meanwhile_is_not_counted_twice(cache, kept, monkeypatch):
    one, _, _, proof = kept
    real = own

    def late(file):
        if one.exists():
            one.rename(cache.folder / "gone")
        return real(file)

    monkeypatch.setattr("tidec.cache.clean.own", late)
    found = clean(cache.folder, max_bytes=None, older_than_s=2.25 * DAY, now=NOW)
    assert [i.path for i in found.removed] == [proof] and found.in_use == ()


def test_a_bundle_that_somebody_broke_goes_too(cache, kept):
    (kept[0] / "manifest.json").unlink()
    os.utime(kept[0], (NOW, NOW - 3 * DAY))
    cleaned(cache, older_than_s=2.75 * DAY, gone=kept[:1])


def test_a_spare_goes_and_one_that_stands_alone_is_a_bundle(cache, kept):
    one = kept[0]
    spare = one.with_name(f"{one.name}.{'0' * 16}")
    one.rename(spare)
    assert [i.kind for i in contents(cache.folder) if i.path == spare] == [Kind.BUNDLE]
    cleaned(cache, gone=())
    one.mkdir()
    assert [i.kind for i in contents(cache.folder) if i.path == spare] == [Kind.SPARE]
    cleaned(cache, gone=(spare,))


def test_leftovers_of_the_dead_go_and_those_of_the_living_stay(cache, kept, forked):
    def die():
        with workspace(cache.folder) as work:
            (work / "half").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    with workspace(cache.folder) as mine:
        forked(die)
        for is_dry in (True, False):
            found = clean(cache.folder, max_bytes=None, older_than_s=None, now=NOW, is_dry=is_dry)
            assert [(i.kind, i.bytes) for i in found.removed] == [(Kind.LEFTOVER, 4)] and mine.is_dir()
        assert sorted(os.listdir(cache.folder / WORK)) == [mine.name, f"{mine.name}.lock"]


def test_what_is_not_ours_stays(cache, kept):
    (cache.folder / "thesis").mkdir()
    (cache.folder / "proofs" / "notes").write_text("x")
    clean(cache.folder, max_bytes=0, older_than_s=0.0, now=NOW)
    assert (cache.folder / "thesis").is_dir() and (cache.folder / "proofs" / "notes").read_text() == "x"


def test_a_cache_that_is_not_there_or_not_ones_own(cache, tmp_path, refusal):
    assert clean(cache.folder, max_bytes=0, older_than_s=0.0, now=NOW).removed == () and not cache.folder.exists()
    cache.folder.mkdir()
    cache.folder.chmod(0o777)
    assert refusal(clean, cache.folder, max_bytes=0, older_than_s=0.0, now=NOW).code == "C003"
