"""Opening a bundle to run it: what is checked before anything of it is loaded, and what TIDEC_NO_BUILD forbids."""
from __future__ import annotations

import json
import shutil
import sysconfig
from pathlib import Path

import pytest

import tidec
from tidec.build.library import build_library, library_name
from tidec.build.rt import rt_file
from tidec.emit.manifest import sha256
from tidec.errors import Exit, TidecError
from tidec.run.library import is_disabled, is_required, load_rt, open_bundle

GROUP = {"name": "g", "params": [{"name": "a", "shape": [7, 3], "dtype": "bf16"}, {"name": "b", "shape": [33], "dtype": "bf16"}]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of one node of two lanes without a library; copied by those who change it."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "g.json").write_text(json.dumps({"groups": [GROUP]}), encoding="utf-8")
    return tidec.compile("1x2", str(folder / "g.json"), out=str(folder / "bundle")).path


@pytest.fixture
def bundle(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TIDEC_NO_BUILD", raising=False)
    shutil.copytree(made, tmp_path / "bundle")
    return tmp_path / "bundle"


def refused(call, *arguments: object) -> TidecError:
    with pytest.raises(TidecError) as caught:
        call(*arguments)
    return caught.value


def test_a_bundle_is_opened_with_a_library_that_is_built_once(bundle):
    opened = open_bundle(bundle, "host")
    assert opened.library == bundle / library_name("host") and opened.programs == (0, 1) and [p.nodes for p in opened.bundle.plans] == [1, 1]
    before = opened.library.stat().st_mtime_ns
    assert open_bundle(bundle, "host").library.stat().st_mtime_ns == before


def test_no_build_uses_what_is_there_and_compiles_nothing(bundle, tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEC_NO_BUILD", "1")
    d = refused(open_bundle, bundle, "host").diagnostics[0]
    assert d.code == "E002" and "no library for target host" in d.sentence and "TIDEC_NO_BUILD=1" in d.reason and "--target host" in d.help
    assert not (bundle / "lib").exists()
    build_library(bundle, "host")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CXX", raising=False)
    assert open_bundle(bundle, "host").library.is_file()


def test_a_build_that_never_ended_is_built_again_and_where_that_is_forbidden_it_is_told(bundle, monkeypatch):
    """As a kill leaves it: without build.sha256."""
    opened = open_bundle(bundle, "host")
    (bundle / "build.sha256").unlink()
    monkeypatch.setenv("TIDEC_NO_BUILD", "1")
    d = refused(open_bundle, bundle, "host").diagnostics[0]
    assert d.code == "E002" and d.sentence.endswith("has no library for target host: a build of it was stopped before it ended")
    monkeypatch.delenv("TIDEC_NO_BUILD")
    assert open_bundle(bundle, "host").programs == opened.programs and (bundle / "build.sha256").is_file()


def test_no_build_with_another_value_is_an_error(bundle, monkeypatch):
    monkeypatch.setenv("TIDEC_NO_BUILD", "yes")
    problem = refused(open_bundle, bundle, "host")
    assert problem.exit is Exit.USAGE and 'TIDEC_NO_BUILD is "yes"' in problem.diagnostics[0].sentence


@pytest.mark.parametrize("name", ["module.cpp", "kernels.cu", "g.rs.plan.json", "g.ag.cert.json"])
def test_a_changed_file_is_named_before_anything_is_built(bundle, name):
    data = bytearray((bundle / name).read_bytes())
    data[len(data) // 2] ^= 1
    (bundle / name).write_bytes(data)
    problem = refused(open_bundle, bundle, "host")
    assert problem.exit is Exit.INTEGRITY and name in str(problem) and not (bundle / "lib").exists()


def test_a_changed_library_is_never_loaded(bundle):
    library = open_bundle(bundle, "host").library
    data = library.read_bytes()
    library.unlink()  # it is mapped by now: written in place it would end this process
    library.write_bytes(data[:-1] + b"\x7f")
    problem = refused(open_bundle, bundle, "host")
    assert problem.exit is Exit.INTEGRITY and library.name in str(problem)


@pytest.mark.slow
def test_the_library_of_another_bundle_is_refused_although_its_digests_fit(bundle, tmp_path):
    """As after a copy by hand, with every listing made to fit."""
    (tmp_path / "h.json").write_text(json.dumps({"groups": [{**GROUP, "name": "h", "params": [{"name": "a", "shape": [9, 5], "dtype": "bf16"}]}]}), encoding="utf-8")
    other = tidec.compile("1x2", str(tmp_path / "h.json"), out=str(tmp_path / "other")).path
    build_library(bundle, "host")
    build_library(other, "host")
    name = library_name("host")
    shutil.copyfile(other / name, bundle / name)
    listing = json.loads((bundle / "build.json").read_bytes())
    data = (bundle / name).read_bytes()
    listing["files"][name] = {"sha256": sha256(data), "size": len(data)}
    text = json.dumps(listing, sort_keys=True, separators=(",", ":"))
    (bundle / "build.json").write_text(text, encoding="ascii")
    (bundle / "build.sha256").write_text(f"{sha256(text.encode())}  build.json\n", encoding="ascii")
    problem = refused(open_bundle, bundle, "host")
    assert problem.diagnostics[0].code == "C001" and "does not hold plan" in problem.diagnostics[0].reason


# ---- tidec_rt

def test_the_module_is_built_once_a_python_abi_and_tells_a_librarys_programs(rt_kept, made, tmp_path):
    file = rt_file(rt_kept)
    assert file.name.endswith(sysconfig.get_config_var("EXT_SUFFIX")) and [p.name for p in rt_kept.iterdir()] == [file.name]
    before = file.stat().st_mtime_ns
    rt = load_rt(rt_kept)
    assert file.stat().st_mtime_ns == before
    shutil.copytree(made, tmp_path / "bundle")
    opened = open_bundle(tmp_path / "bundle", "host")
    library = rt.Library(str(opened.library))
    programs = [library.program(i) for i in opened.programs]
    assert [(p.plan_digest, p.lanes, p.arena_bytes, p.is_reduction) for p in programs] == [
        (p.digest, 2, p.arena.bytes, p.collective.value == "reduce_scatter") for p in opened.bundle.plans]
    with pytest.raises(IndexError):
        library.program(len(programs))


def test_what_a_library_lacks_is_named(rt_kept, tmp_path):
    rt = load_rt(rt_kept)
    with pytest.raises(RuntimeError, match="no-such-file"):
        rt.Library(str(tmp_path / "no-such-file.so"))
    with pytest.raises(RuntimeError, match="has no tidec_num_programs"):
        rt.Library("libc.so.6")


def test_no_build_forbids_the_module_too(tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEC_NO_BUILD", "1")
    d = refused(load_rt, tmp_path).diagnostics[0]
    assert d.code == "E002" and "tidec_rt is not built" in d.sentence and not list(tmp_path.iterdir())


def test_a_damaged_module_is_named(tmp_path):
    rt_file(tmp_path).write_bytes(b"\x7fELF nothing")
    assert "cannot be loaded" in refused(load_rt, tmp_path).diagnostics[0].sentence


@pytest.mark.parametrize("name, is_on", [("TIDEC_DISABLE", is_disabled), ("TIDEC_REQUIRE", is_required)])
def test_a_switch_of_the_job_is_0_or_1(name, is_on, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    assert not is_on()
    for value, want in (("1", True), ("0", False), ("", False)):
        monkeypatch.setenv(name, value)
        assert is_on() is want
    monkeypatch.setenv(name, "true")
    assert f'{name} is "true"' in refused(is_on).diagnostics[0].sentence
