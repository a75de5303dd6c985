"""An entry is what its name says, down to the last byte, or the file that is not is named."""
from __future__ import annotations

import json
import os
from hashlib import sha256

import pytest

from tidec.cache.entry import check_entry, digest_of, entry_folders, is_built


@pytest.fixture
def built(by_hand, tmp_path):
    return by_hand("x", lib=b"\x7fELF" + bytes(range(256)))(tmp_path / "b")


def test_the_files_of_an_entry_are_those_that_lie_there(built, by_hand, tmp_path):
    entry = check_entry(built.path, built.digest)
    assert [f.name for f in entry.written] == ["ask.json", "block.ag.hpp", "manifest.json", "manifest.sha256"]
    assert [f.name for f in entry.built] == ["build.json", "build.log", "build.sha256", "lib/host-x86_64.so"]
    assert entry.bytes == sum(p.stat().st_size for p in built.path.rglob("*") if p.is_file())
    plain = by_hand("x")(tmp_path / "plain")
    assert plain.digest == built.digest and check_entry(plain.path, plain.digest).built == () and is_built(built.path) and not is_built(plain.path)


def test_one_changed_byte_of_any_file_is_found_and_the_file_named(built, draws, refusal):
    random = draws(1)
    for name in sorted(p.relative_to(built.path).as_posix() for p in built.path.rglob("*") if p.is_file()):
        file = built.path / name
        keep = file.read_bytes()
        for at in {0, len(keep) - 1, *(random.randrange(len(keep)) for _ in range(5))}:
            changed = bytearray(keep)
            changed[at] ^= random.randrange(1, 256)
            file.write_bytes(changed)
            d = refusal(check_entry, built.path, built.digest)
            # Which of build.json and its seal was changed cannot be known: both are named.
            assert d.code == "C001" and name in d.sentence.partition(" of the kept bundle")[0].split(" or "), (name, at, d)
        file.write_bytes(keep)
    check_entry(built.path, built.digest)


CHANGES = {
    "missing": lambda file, other: file.unlink(),
    "longer": lambda file, other: file.write_bytes(file.read_bytes() + b"\0"),
    "cut": lambda file, other: file.write_bytes(file.read_bytes()[:-1]),
    "folder": lambda file, other: (file.unlink(), file.mkdir()),
    "link": lambda file, other: (file.rename(other), file.symlink_to(other)),
    "pipe": lambda file, other: (file.unlink(), os.mkfifo(file)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["ask.json", "manifest.json", "manifest.sha256", "lib/host-x86_64.so", "build.log", "build.json", "build.sha256"])
def test_a_file_of_another_kind_or_length_is_named(built, name, change, tmp_path, refusal):
    CHANGES[change](built.path / name, tmp_path / "other")
    d = refusal(check_entry, built.path, built.digest)
    assert d.code == "C001" and name in d.sentence.partition(" of the kept bundle")[0].split(" or ")


@pytest.mark.parametrize("name", ["more.hpp", "lib/more.so", ".hidden"])
def test_a_file_that_nobody_lists_is_named(built, name, refusal):
    (built.path / name).write_text("")
    assert refusal(check_entry, built.path, built.digest).sentence.startswith(f"{name} of")


def test_an_empty_folder_where_libraries_lie_is_a_build_without_its_record(by_hand, tmp_path, refusal):
    made = by_hand()(tmp_path / "b")
    (made.path / "lib").mkdir()
    assert refusal(check_entry, made.path, made.digest).sentence.startswith("build.sha256 of")


def test_a_bundle_under_another_digest_is_refused(built, refusal):
    d = refusal(check_entry, built.path, "0" * 64)
    assert d.code == "C001" and "manifest.json" in d.sentence and "name of its folder" in d.reason


def test_an_entry_that_is_a_link_or_a_file_is_refused(built, tmp_path, refusal):
    (tmp_path / "link").symlink_to(built.path)
    (tmp_path / "file").write_text("")
    for name in ("link", "file", "none"):
        assert refusal(check_entry, tmp_path / name, built.digest).code == "C001"


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"files": 3}', b'{"files": {"a": 3}}', b"[" * 100_000, b"\xff", b'{"files": {"../../b/ask.json": {"size": 1, "sha256": "x"}}}'])
def test_a_manifest_that_lists_nothing_or_what_is_elsewhere_is_refused(content, built, refusal):
    """Even where its digest is right: an archive brings its own."""
    digest = sha256(content).hexdigest()
    (built.path / "manifest.json").write_bytes(content)
    (built.path / "manifest.sha256").write_text(f"{digest}  manifest.json\n")
    assert refusal(check_entry, built.path, digest).sentence.startswith("manifest.json of")


def test_a_build_lists_nothing_outside_of_its_folder(built, refusal):
    for name in ("lib/../ask.json", "ask.json", "lib/sub/x.so", "/etc/passwd", "lib/", "lib"):
        build = json.dumps({"files": {name: {"size": 0, "sha256": ""}}}).encode()
        (built.path / "build.json").write_bytes(build)
        (built.path / "build.sha256").write_text(f"{sha256(build).hexdigest()}  build.json\n")
        d = refusal(check_entry, built.path, built.digest)
        assert d.sentence.startswith("build.json of") and "no name" in d.reason


def test_a_file_larger_than_a_piece_is_read_whole(by_hand, tmp_path):
    made = by_hand("x", lib=bytes(range(251)) * 10_000)(tmp_path / "b")
    assert check_entry(made.path, made.digest).built[-1].size == 2_510_000


def test_entries_are_what_is_named_like_one(tmp_path):
    for name in ("a" * 64, "b" * 64 + "." + "0" * 16, "proofs", ".work", "c" * 63, "d" * 64 + ".new", "E" * 64):
        (tmp_path / name).mkdir()
    assert [p.name for p in entry_folders(tmp_path)] == ["a" * 64, "b" * 64 + "." + "0" * 16]
    assert [digest_of(p)[:2] for p in entry_folders(tmp_path)] == ["aa", "bb"] and entry_folders(tmp_path / "none") == ()
