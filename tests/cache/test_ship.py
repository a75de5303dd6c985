"""An archive is the same for the same bundles, and of one that was changed nothing is taken in."""
from __future__ import annotations

import errno
import os
import tracemalloc
from hashlib import sha256

import pytest

from tidec.cache import ship
from tidec.cache.entry import check_entry
from tidec.cache.key import Cache
from tidec.cache.ship import INDEX, export, import_archive
from tidec.cache.store import keep_bundle
from tidec.cache.tape import END, header
from tidec.cache.workspace import WORK
from tidec.errors import Diagnostic, TidecError


def agrees(path):
    """Stands for the check of what a bundle means, which is the business of tests/verify."""


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def other(tmp_path):
    return Cache(tmp_path / "far" / "away")


@pytest.fixture
def kept(cache, by_hand):
    """Three bundles, the second with a library."""
    made = [keep_bundle(cache, by_hand(text, lib=b"\x7fELF" * 1000 if text == "two" else b"")) for text in ("one", "two", "three")]
    return [check_entry(m.path, m.digest) for m in made]


def names(cache):
    return sorted(n for n in os.listdir(cache.folder) if n != WORK) if cache.folder.exists() else []


def paths(entries):
    return [e.path for e in entries]


def files(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def take(cache, file, recheck=agrees):
    return import_archive(cache, file, recheck=recheck)


def test_what_was_exported_is_imported_under_another_path(kept, other, tmp_path):
    shipped = export(paths(kept), tmp_path / "a.tar")
    assert shipped.digests == tuple(sorted(e.digest for e in kept)) and shipped.bytes == (tmp_path / "a.tar").stat().st_size
    assert shipped.sha256 == sha256((tmp_path / "a.tar").read_bytes()).hexdigest()
    found = take(other, tmp_path / "a.tar")
    assert all(i.is_new for i in found) and names(other) == list(shipped.digests)
    for entry in kept:
        assert files(other.folder / entry.digest) == files(entry.path)
    assert sorted(os.listdir(tmp_path)) == ["a.tar", "cache", "far"]


def test_importing_twice_does_nothing(kept, other, tmp_path):
    export(paths(kept), tmp_path / "a.tar")
    take(other, tmp_path / "a.tar")
    before = {n: os.stat(other.folder / n).st_ino for n in names(other)}
    assert [i.is_new for i in take(other, tmp_path / "a.tar")] == [False] * 3
    assert {n: os.stat(other.folder / n).st_ino for n in names(other)} == before and os.listdir(other.folder / WORK) == []


def test_equal_bundles_give_equal_bytes_on_another_day_under_another_path_in_another_order(kept, other, tmp_path, by_hand):
    one = export(paths(kept), tmp_path / "a.tar")
    take(other, tmp_path / "a.tar")
    again = [check_entry(other.folder / e.digest, e.digest) for e in reversed(kept)]
    for path in other.folder.rglob("*"):
        os.utime(path, (86_400 * 365, 86_400 * 365))
        path.chmod(0o700 if path.is_dir() else 0o640)
    two = export(paths([*again, *again]), tmp_path / "b.tar")
    assert one.sha256 == two.sha256 and (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_a_part_is_exported_by_itself_and_without_libraries(kept, other, tmp_path):
    assert export(paths(kept[:1]), tmp_path / "one.tar").digests == (kept[0].digest,)
    export(paths(kept), tmp_path / "plain.tar", has_lib=False)
    take(other, tmp_path / "plain.tar")
    assert not any((other.folder / e.digest / "lib").exists() for e in kept)
    assert files(other.folder / kept[1].digest).keys() == {f.name for f in kept[1].written}


def test_libraries_come_after_when_an_archive_brings_them(kept, other, tmp_path):
    export(paths(kept), tmp_path / "plain.tar", has_lib=False)
    export(paths(kept), tmp_path / "built.tar")
    take(other, tmp_path / "plain.tar")
    assert [i.digest for i in take(other, tmp_path / "built.tar") if i.is_new] == [kept[1].digest]
    assert files(other.folder / kept[1].digest) == files(kept[1].path)


def test_a_byte_of_any_member_is_missed_and_the_member_named(kept, other, tmp_path, draws, refusal):
    """Of every file of the archive, header and contents: three places each, and a few in what lies between and behind."""
    random = draws(7)
    export(paths(kept), tmp_path / "a.tar")
    whole = (tmp_path / "a.tar").read_bytes()
    at, starts = 0, []
    for name, size in [(INDEX, 0), *((f"{e.digest}/{f.name}", f.size) for e in sorted(kept, key=lambda e: e.digest)
                                     for f in sorted((*e.written, *e.built), key=lambda f: f.name))]:
        size = size or whole.index(b"}", at + 512) + 1 - at - 512
        starts.append((name, at, size))
        at += 512 + size + -size % 512
    assert whole[at:] == END
    for name, start, size in starts:
        for offset in (random.randrange(512), 512 + random.randrange(size), 512 + size - 1):
            changed = bytearray(whole)
            changed[start + offset] ^= random.randrange(1, 256)
            (tmp_path / "b.tar").write_bytes(changed)
            d = refusal(take, other, tmp_path / "b.tar")
            assert d.code == "C005", (name, offset)
            # A changed name is told as it now stands there; everything else by the name of the file.
            folder, _, last = name.rpartition("/")
            said = d.sentence.partition(" of the archive ")[0]
            is_named = said.startswith(folder) and last in said.rpartition("/")[2].split(" or ")
            assert is_named or offset in (*range(100), *range(345, 500)) and "of the archive" in d.sentence, (name, offset, d)
            assert names(other) == [] and os.listdir(other.folder / WORK) == []
    for offset in [random.randrange(at, len(whole)) for _ in range(20)]:
        changed = bytearray(whole)
        changed[offset] ^= 1
        (tmp_path / "b.tar").write_bytes(changed)
        assert refusal(take, other, tmp_path / "b.tar").code == "C005"


def test_a_cut_archive_is_refused_wherever_it_is_cut(kept, other, tmp_path, draws, refusal):
    random = draws(11)
    export(paths(kept), tmp_path / "a.tar")
    whole = (tmp_path / "a.tar").read_bytes()
    for length in [0, 1, 511, 512, len(whole) - 1, len(whole) - 512, *(random.randrange(len(whole)) for _ in range(60))]:
        (tmp_path / "b.tar").write_bytes(whole[:length])
        assert refusal(take, other, tmp_path / "b.tar").code == "C005" and names(other) == []


# ---- archives that export never writes

def packed(tmp_path, *parts, index=None):
    """An archive of these (name, contents), spelt as export spells."""
    digests = sorted({n.split("/")[0] for n, _ in parts})
    first = ship._index(digests) if index is None else index
    data = b"".join(header(n, len(c)) + c + bytes(-len(c) % 512) for n, c in [(INDEX, first), *sorted(parts)]) + END
    (tmp_path / "odd.tar").write_bytes(data)
    return tmp_path / "odd.tar"


@pytest.fixture
def parts(kept):
    entry = kept[1]
    return [(f"{entry.digest}/{f.name}", (entry.path / f.name).read_bytes()) for f in (*entry.written, *entry.built)]


def test_the_archives_of_this_test_are_those_of_export(parts, kept, tmp_path):
    export(paths(kept[1:2]), tmp_path / "a.tar")
    assert packed(tmp_path, *parts).read_bytes() == (tmp_path / "a.tar").read_bytes()


@pytest.mark.parametrize("drop", ["manifest.json", "manifest.sha256", "ask.json", "build.json", "build.sha256", "build.log", "lib/host-x86_64.so"])
def test_a_file_that_is_missing_is_named(drop, parts, other, tmp_path, refusal):
    d = refusal(take, other, packed(tmp_path, *(p for p in parts if not p[0].endswith(f"/{drop}"))))
    assert d.code == "C005" and f"/{drop} of the archive" in d.sentence and names(other) == []


@pytest.mark.parametrize("name", ["more.hpp", "lib/more.so", "sub/more.hpp", "ASK.json", "lib/HOST-x86_64.so", "Lib/x"])
def test_a_file_that_nobody_lists_is_named(name, parts, other, tmp_path, refusal):
    d = refusal(take, other, packed(tmp_path, *parts, (f"{parts[0][0].split('/')[0]}/{name}", b"x")))
    assert d.code == "C005" and name.split("/")[-1 if name.startswith("lib") else 0].lower() in d.sentence.lower() and names(other) == []


def test_names_that_differ_in_case_only_are_refused_before_anything_is_overwritten(parts, other, tmp_path, refusal):
    digest = parts[0][0].split("/")[0]
    assert "case only" in refusal(take, other, packed(tmp_path, *parts, (f"{digest}/Ask.json", b"x"))).reason


def test_a_file_in_the_place_of_a_folder_is_refused(parts, other, tmp_path, refusal):
    digest = parts[0][0].split("/")[0]
    d = refusal(take, other, packed(tmp_path, *parts, (f"{digest}/lib", b"x")))
    assert d.code == "C005" and "in its way" in d.reason and names(other) == []


def test_a_bundle_under_another_digest_is_refused(parts, other, tmp_path, refusal):
    d = refusal(take, other, packed(tmp_path, *(("0" * 64 + "/" + n.split("/", 1)[1], c) for n, c in parts)))
    assert d.code == "C005" and "manifest.json" in d.sentence and names(other) == []


@pytest.mark.parametrize("index", [
    b"", b"{}", b"[" * 10_000, b"\xff", b'{"bundles":[],"schema":"tidec.archive/1"}', b'{"bundles": [], "schema": "tidec.archive/1"}',
    b'{"bundles":["../../x"],"schema":"tidec.archive/1"}', b'{"bundles":[""],"schema":"tidec.archive/1"}', b'{"bundles":{},"schema":"tidec.archive/2"}',
    b'{"bundles":["' + b"0" * 64 + b'"],"schema":"tidec.archive/1"}',
])
def test_a_list_that_is_not_of_what_follows_is_refused(index, parts, other, tmp_path, refusal):
    d = refusal(take, other, packed(tmp_path, *parts, index=index))
    assert d.code == "C005" and names(other) == []
    assert refusal(take, other, packed(tmp_path, index=index)).code == "C005" if index != b'{"bundles":[],"schema":"tidec.archive/1"}' else take(other, packed(tmp_path, index=index)) == ()


def test_an_archive_of_a_later_version_says_so(other, tmp_path, refusal):
    assert "tidec.archive/1" in refusal(take, other, packed(tmp_path, index=b'{"bundles":[],"schema":"tidec.archive/9"}')).reason


# ---- everything is checked before anything is visible

def test_one_bundle_that_does_not_recheck_keeps_all_out(kept, other, tmp_path, refusal):
    export(paths(kept), tmp_path / "a.tar")
    last = max(e.digest for e in kept)

    def recheck(path):
        if path.name == last:
            raise TidecError(Diagnostic("V104", "two writers meet", help="x"))

    d = refusal(take, other, tmp_path / "a.tar", recheck)
    assert d.code == "V104" and "a.tar" in d.sentence and names(other) == []


def test_a_kept_bundle_that_was_changed_keeps_all_out(kept, other, tmp_path, refusal):
    export(paths(kept[2:]), tmp_path / "one.tar")
    export(paths(kept), tmp_path / "a.tar")
    take(other, tmp_path / "one.tar")
    (other.folder / kept[2].digest / "ask.json").write_text("!")
    d = refusal(take, other, tmp_path / "a.tar")
    assert d.code == "C001" and "ask.json of the kept bundle" in d.sentence and names(other) == [kept[2].digest]


def test_a_full_disk_keeps_all_out(kept, other, tmp_path, monkeypatch, refusal):
    export(paths(kept), tmp_path / "a.tar")
    monkeypatch.setattr(ship, "_unpack", lambda part, place: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    d = refusal(take, other, tmp_path / "a.tar")
    assert d.code == "E003" and "full" in d.sentence and names(other) == [] and os.listdir(other.folder / WORK) == []


def test_libraries_are_not_taken_in_where_none_can_be_loaded(kept, other, tmp_path, monkeypatch, refusal):
    export(paths(kept), tmp_path / "a.tar")
    real = os.statvfs("/")
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((*real[:8], os.ST_NOEXEC, real.f_namemax)))
    assert refusal(take, other, tmp_path / "a.tar").code == "E005" and names(other) == []


def test_what_a_layer_has_is_not_copied(kept, cache, other, tmp_path):
    export(paths(kept), tmp_path / "a.tar")
    cache.folder.chmod(0o755)
    found = take(Cache(other.folder, (cache.folder,)), tmp_path / "a.tar")
    assert [i.is_new for i in found] == [False] * 3 and names(other) == []


# ---- the file itself

def test_an_archive_that_stands_there_is_replaced_only_by_force(kept, tmp_path, refusal):
    (tmp_path / "a.tar").write_text("mine")
    assert refusal(export, paths(kept), tmp_path / "a.tar").code == "C002" and (tmp_path / "a.tar").read_text() == "mine"
    export(paths(kept), tmp_path / "a.tar", is_forced=True)
    (tmp_path / "folder").mkdir()
    assert refusal(export, paths(kept), tmp_path / "folder", is_forced=True).code == "C002"
    assert refusal(export, paths(kept), tmp_path / "none" / "a.tar").code == "E003"


@pytest.mark.parametrize("name", ["none", "folder", "pipe"])
def test_an_archive_that_is_no_file_is_a_usage_error(name, other, tmp_path, refusal):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert refusal(take, other, tmp_path / name).code == "P001" and not other.folder.exists()


@pytest.mark.parametrize("text", ["ONE", "longer", ""])
def test_a_bundle_that_was_changed_or_changes_while_it_is_written_leaves_no_archive(text, kept, tmp_path, monkeypatch, refusal):
    real = ship._pieces

    def late(entry, part):
        if part.name == "ask.json":
            (entry.path / "ask.json").write_text(text)
        return real(entry, part)

    monkeypatch.setattr(ship, "_pieces", late)
    for reason in ("it changed while it was read", "its size or sha256"):
        d = refusal(export, paths(kept[:1]), tmp_path / "a.tar")
        assert d.code == "C001" and d.sentence.startswith("ask.json of") and d.reason.startswith(reason) and sorted(os.listdir(tmp_path)) == ["cache"]


def test_a_full_disk_leaves_no_archive(kept, tmp_path, full_disk):
    with full_disk(), pytest.raises(TidecError) as caught:
        export(paths(kept), tmp_path / "a.tar")
    assert caught.value.diagnostics[0].code == "E003" and sorted(os.listdir(tmp_path)) == ["cache"]


def test_neither_way_holds_a_library_in_memory(cache, other, by_hand, tmp_path):
    made = keep_bundle(cache, by_hand(lib=bytes(48 << 20)))
    tracemalloc.start()
    try:
        export([made.path], tmp_path / "a.tar")
        take(other, tmp_path / "a.tar")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert (other.folder / made.digest / "lib" / "host-x86_64.so").stat().st_size == 48 << 20
