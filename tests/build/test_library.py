"""A bundle's library: built aside, published whole, found again, and never half there."""
from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from tidec.build import library as module
from tidec.build.beside import beside
from tidec.build.library import build_library, has_library, is_unfinished, library_name
from tidec.cache.entry import check_entry
from tidec.emit.bundle import Bundle, read_bundle, write_bundle
from tidec.errors import Exit, TidecError
from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import parse_knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import Topology
from tidec.plan.lower import lower
from tidec.run.worker import Sizes, open_library
from tidec.verify.certificate import Proved
from tidec.verify.recheck_files import read_files

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


def refused(call: Callable, *arguments: object) -> TidecError:
    with pytest.raises(TidecError) as caught:
        call(*arguments)
    return caught.value


def without_library(bundle: Path) -> None:
    shutil.rmtree(bundle / "lib")
    for name in BUILT - {"lib"}:
        (bundle / name).unlink()


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
    without_library(copied)
    with pytest.raises(TidecError, match="E002"):
        build_library(copied, "host", flags=("-O0",))


@pytest.mark.parametrize("name", sorted(BUILT - {"lib"}) + [LIBRARY])
def test_a_build_that_was_changed_is_refused_and_never_built_over(name, copied):
    data = (copied / name).read_bytes()
    (copied / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    before = files(copied)
    told = refused(build_library, copied, "host")
    assert told.exit is Exit.INTEGRITY and (name if name != "build.sha256" else "build.json") in str(told) and "lib, build.log, build.json and build.sha256" in str(told)
    assert files(copied) == before and not has_library(copied, "host")
    assert refused(read_files, copied).exit is Exit.INTEGRITY


@pytest.mark.parametrize("name", ["build.json", "build.log", LIBRARY])
def test_a_build_of_which_a_file_is_missing_is_refused(name, copied):
    (copied / name).unlink()
    assert refused(build_library, copied, "host").exit is refused(read_files, copied).exit is Exit.INTEGRITY


# ---- kills


def forked(act: Callable[[], int]) -> int:
    """A process that does it and exits with what it gives."""
    child = os.fork()
    if not child:
        try:
            os._exit(act())
        except BaseException:
            traceback.print_exc()
            os._exit(99)
    return child


def status_of(child: int) -> int:
    """-9 = it was killed."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def build(bundle: Path, text: bytes, kill_at: int = -1, *, while_compiling: Callable[[], None] = lambda: None) -> bool:
    """Publish these bytes as the library, without a compiler; killed before the step with that number, of all renames, removals and syncs. Whether it is new."""
    steps = 0

    def step(call):
        def counted(*arguments, **options):
            nonlocal steps
            if steps == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            steps += 1
            return call(*arguments, **options)
        return counted

    def compiled(_bundle: Path, aside: Path, *_rest) -> str:
        while_compiling()
        (aside / "library.so").write_bytes(text)
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_compile", compiled)
        if kill_at >= 0:
            for name in ("replace", "unlink", "mkdir", "fsync"):
                patch.setattr(os, name, step(getattr(os, name)))
        return build_library(bundle, "host", flags=(f"-DTEXT={text!r}",)).is_new


@pytest.mark.parametrize("has_one", [False, True], ids=["the first build", "a build over another"])
def test_a_build_that_is_killed_at_any_step_leaves_a_whole_library_or_none_and_the_next_one_ends_it(has_one, tmp_path):
    """Every rename, removal, new folder and sync of a publication, one after the other, with kill -9."""
    original, seen, step = bundle_of(tmp_path / "original", (4, 2)).path, set(), 0
    if has_one:
        build(original, b"first")
    while True:
        bundle = Path(shutil.copytree(original, tmp_path / str(step) / "bundle"))
        status = status_of(forked(lambda: int(build(bundle, b"second", step))))
        assert status in (1, -signal.SIGKILL)
        found = read_files(bundle)              # never an error: nothing was changed
        is_whole = (bundle / "build.sha256").exists()
        assert is_unfinished(bundle) is (not is_whole and any((bundle / name).exists() for name in BUILT))
        assert is_unfinished(bundle) is found.is_unfinished
        seen.add("unfinished" if is_unfinished(bundle) else "whole" if is_whole else "none")
        if status == 1:
            break
        build(bundle, b"third")
        assert (bundle / LIBRARY).read_bytes() == b"third" and os.listdir(bundle / "lib") == [Path(LIBRARY).name]
        assert os.listdir(bundle.parent) == ["bundle"], "what the dead builder left is gone"
        check_entry(bundle, read_bundle(bundle).digest)
        step += 1
    assert seen == ({"whole", "unfinished"} if has_one else {"none", "unfinished", "whole"}) and step > 8


def test_libraries_of_other_targets_that_no_listing_names_any_more_go(tmp_path):
    """As after a kill while a second target's was published."""
    bundle = bundle_of(tmp_path / "bundle", (4, 2)).path
    build(bundle, b"first")
    (bundle / "lib" / "other-x.so").write_bytes(b"other")
    (bundle / "build.sha256").unlink()
    assert build(bundle, b"first") and os.listdir(bundle / "lib") == [Path(LIBRARY).name] and not read_files(bundle).is_unfinished


def test_the_folder_of_a_living_builder_stays(tmp_path):
    bundle = bundle_of(tmp_path / "bundle", (4, 2)).path
    with beside(bundle) as living:
        build(bundle, b"x")
        assert living.is_dir() and len(list(tmp_path.glob(".build-*"))) == 1
    assert not living.exists()


def test_two_builders_of_one_bundle_publish_one_library(tmp_path):
    """The second one waits for the first to publish, and uses what it made."""
    bundle = bundle_of(tmp_path / "bundle", (4, 2)).path
    ready, go = os.pipe(), os.pipe()

    def wait() -> None:
        os.write(ready[1], b"r")
        os.read(go[0], 1)

    child = forked(lambda: int(build(bundle, b"x", while_compiling=wait)))
    os.read(ready[0], 1)
    assert build(bundle, b"x")
    os.write(go[1], b"g")
    assert status_of(child) == 0, "it is not new"
    for end in (*ready, *go):
        os.close(end)
    check_entry(bundle, read_bundle(bundle).digest)


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
