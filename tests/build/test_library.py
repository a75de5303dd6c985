"""A bundle's library: built aside, published whole, found again, and never half there."""
from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from tidec.build import library as module
from tidec.build.library import build_library, has_library, library_name
from tidec.cache.entry import check_entry
from tidec.emit.bundle import Bundle, read_bundle, write_bundle
from tidec.errors import TidecError
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import Topology
from tidec.plan.lower import lower
from tidec.run.worker import Sizes, open_library
from tidec.verify.certificate import Proved

LIBRARY = library_name("host")
BUILT = {"lib", "build.json", "build.log", "build.sha256"}


def bundle_of(out: Path, *shapes: tuple[int, ...]) -> Bundle:
    topology = Topology(2, 2)
    group = Group("g", 1, tuple(Parameter(f"p{i}", s, Dtype.BF16) for i, s in enumerate(shapes)))
    ask = Ask(topology, group, Lowering.P2P, parse_knobs((), 2, nodes=2))
    return write_bundle([Proved(lower(ask, c), "{}") for c in Collective], asks=(ask,), out=out)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A bundle with its library, which no test changes."""
    beside = tmp_path_factory.mktemp("kept")
    made = bundle_of(beside / "bundle", (7, 3), (33,))
    return build_library(made.path, "host", flags=("-O0",))


@pytest.fixture
def copied(kept, tmp_path):
    """The same in a folder of the test's own."""
    return Path(shutil.copytree(kept.path.parent.parent, tmp_path / "bundle"))


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_library_stands_in_its_bundle_and_gives_its_plans(kept):
    bundle = kept.path.parent.parent
    assert kept.is_new and kept.path == bundle / LIBRARY and kept.target == "host"
    made = read_bundle(bundle)
    opened = open_library(str(kept.path))
    found = [opened.tidec_program_at(i).contents for i in range(opened.tidec_num_programs())]
    assert [(p.name.decode(), p.plan_digest.decode(), p.nodes, p.lanes) for p in found] == [(s, p.digest, 2, 2) for s, p in zip(made.stems, made.plans)]


def test_a_build_lists_its_files_and_what_it_was_built_with(kept):
    bundle = kept.path.parent.parent
    text = (bundle / "build.json").read_bytes()
    assert (bundle / "build.sha256").read_text() == f"{hashlib.sha256(text).hexdigest()}  build.json\n"
    said = json.loads(text)
    assert {n: (f["size"], f["sha256"]) for n, f in said["files"].items()} == {
        n: ((bundle / n).stat().st_size, hashlib.sha256((bundle / n).read_bytes()).hexdigest()) for n in (LIBRARY, "build.log")}
    (entry,) = said["targets"].values()
    assert entry["architecture"] == os.uname().machine and "-ffp-contract=off" in entry["flags"] and "-O0" in entry["flags"] and entry["compiler"]
    check_entry(bundle, read_bundle(bundle).digest)


def test_no_file_of_a_build_names_a_path_of_this_machine(kept, tmp_path):
    for name, data in files(kept.path.parent.parent).items():
        assert str(tmp_path.parent.parent).encode() not in data and str(Path(module.__file__).parent).encode() not in data, name


@pytest.mark.slow
def test_the_same_sources_give_the_same_bytes_anywhere(kept, tmp_path):
    again = build_library(bundle_of(tmp_path / "elsewhere" / "bundle", (7, 3), (33,)).path, "host", flags=("-O0",))
    assert files(again.path.parent.parent) == files(kept.path.parent.parent)


def test_a_library_that_is_there_is_not_built_again(copied):
    before = files(copied)
    again = build_library(copied, "host", flags=("-O0",))
    assert not again.is_new and files(copied) == before


def test_a_library_is_used_where_no_compiler_is(copied, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert not build_library(copied, "host", flags=("-O0",)).is_new
    shutil.rmtree(copied / "lib")
    with pytest.raises(TidecError, match="E002"):
        build_library(copied, "host", flags=("-O0",))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BUILT - {"lib"}) + [LIBRARY])
def test_a_build_that_was_changed_is_built_again(name, copied):
    data = (copied / name).read_bytes()
    (copied / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert build_library(copied, "host", flags=("-O0",)).is_new
    check_entry(copied, read_bundle(copied).digest)


@pytest.mark.slow
def test_other_flags_are_another_library(copied):
    assert not has_library(copied, "host")             # the default ones
    assert build_library(copied, "host", flags=("-O0", "-DOTHER")).is_new


def test_a_build_that_fails_leaves_the_bundle_and_shows_the_end_of_what_was_said(tmp_path):
    made = bundle_of(tmp_path / "bundle", (4, 2))
    text = (made.path / "tables.hpp").read_text()
    (made.path / "tables.hpp").write_text(text + "\nthis is no C++;\n")
    before = files(tmp_path)
    with pytest.raises(TidecError) as caught:
        build_library(made.path, "host", flags=("-O0",))
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "E002" and "tables.hpp" in diagnostic.example[0] and str(tmp_path) not in diagnostic.reason
    assert files(tmp_path) == before


def test_a_build_has_a_deadline(tmp_path):
    made = bundle_of(tmp_path / "bundle", (4, 2))
    before = files(tmp_path)
    with pytest.raises(TidecError, match="did not end within 0 s"):
        build_library(made.path, "host", deadline_s=0.05)
    assert files(tmp_path) == before


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    made = bundle_of(tmp_path / "bundle", (4, 2))
    (made.path / "lib").write_text("in the way")
    with pytest.raises(TidecError, match="E003"):
        build_library(made.path, "host", flags=("-O0",))
    assert (made.path / "lib").read_text() == "in the way" and not (made.path / "build.json").exists()


def test_two_bundles_in_one_process_keep_their_tables_apart(kept, tmp_path):
    other = build_library(bundle_of(tmp_path / "bundle", (70, 30)).path, "host", flags=("-O0",))

    def input_bytes(path: Path) -> int:
        sizes = Sizes()
        assert open_library(str(path)).tidec_host_size(1, 1, ctypes.byref(sizes)) == 0
        return sizes.input_bytes

    # Of the reduce-scatters, whose namespaces have the same name: 21 values at 0 and 33 at 64 bytes; 2100 values.
    assert (input_bytes(kept.path), input_bytes(other.path)) == (192, 4224)
