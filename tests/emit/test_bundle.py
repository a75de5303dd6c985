"""A bundle is written whole, and read back only if every byte of it is what was written."""
import hashlib
import json
import os
import re
from pathlib import Path

import pytest

from tidec.emit.bundle import read_bundle, write_bundle
from tidec.emit.manifest import Ctas, EchoReport, Entry, canonical, ctas_of
from tidec.errors import Exit, TidecError
from tidec.inputs.ask import Collective, StockCause
from tidec.inputs.signature import Dtype
from tidec.plan.lower import lower
from tidec.verify.certificate import Proved

SHAPES = {"block": ((7, 3), (33,)), "embed": ((50, 4),)}


@pytest.fixture
def made(asked):
    """`made()` gives the proved plans and asks of two groups; the second `block` has the plans of the first."""

    def make(topo="2x2", names=("block", "embed", "block"), **rest):
        asks = [asked(topo, shapes=SHAPES[name], name=name, repeat=i + 1, **rest) for i, name in enumerate(names)]
        distinct = {a.group.name: a for a in asks}.values()
        return [Proved(lower(a, c), json.dumps({"of": a.group.name, "c": c.value})) for a in distinct for c in Collective], asks

    return make


@pytest.fixture
def written(made, tmp_path):
    proved, asks = made()
    return write_bundle(proved, asks=asks, out=tmp_path / "b")


def refused(call, *args, **rest):
    with pytest.raises(TidecError) as caught:
        call(*args, **rest)
    return caught.value.diagnostics[0], caught.value.exit


def test_a_bundle_has_the_files_of_the_design(written):
    names = {f"{stem}.{end}" for stem in ("block.ag", "block.rs", "embed.ag", "embed.rs") for end in ("plan.json", "cert.json", "hpp")}
    assert set(os.listdir(written.path)) == names | {"manifest.json", "manifest.sha256", "ask.json", "tables.hpp", "module.cpp", "kernels.cu"}
    assert written.digest == hashlib.sha256((written.path / "manifest.json").read_bytes()).hexdigest()
    assert (written.path / "manifest.sha256").read_text() == f"{written.digest}  manifest.json\n"


def test_the_manifest_says_what_every_file_is_and_what_a_job_needs(written):
    manifest = json.loads((written.path / "manifest.json").read_text())
    assert manifest["schema"] == "tidec.bundle/1" and manifest["tidec_version"] == written.version
    for name in os.listdir(written.path):
        if not name.startswith("manifest."):
            data = (written.path / name).read_bytes()
            assert manifest["files"][name] == {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    assert len(manifest["files"]) == len(os.listdir(written.path)) - 2
    assert manifest["requires"]["environment"] == {"CUDA_DEVICE_MAX_CONNECTIONS": "32"} and set(manifest["requires"]) == {"nccl", "compute_capability", "environment"}
    assert manifest["inputs_digest"] == written.inputs_digest == hashlib.sha256((written.path / "ask.json").read_bytes()).hexdigest()
    assert [(g["name"], g["repeat"], g["all_gather"], g["reduce_scatter"]) for g in manifest["groups"]] == [
        ("block", 1, {"plan": "block.ag"}, {"plan": "block.rs"}), ("embed", 2, {"plan": "embed.ag"}, {"plan": "embed.rs"}),
        ("block", 3, {"plan": "block.ag"}, {"plan": "block.rs"})]


def test_what_is_hashed_is_canonical_and_names_no_machine(written):
    for name in ("manifest.json", "ask.json"):
        text = (written.path / name).read_text()
        assert canonical(json.loads(text)) == text
    everything = b"".join((written.path / n).read_bytes() for n in os.listdir(written.path)).decode()
    assert str(written.path.parent) not in everything and str(Path.cwd()) not in everything
    assert not re.search(r"\b20\d\d-\d\d-\d\d", everything)
    with pytest.raises(AssertionError):
        canonical({"a": [1.5]})


def test_a_bundle_reads_back_as_it_was_written(written):
    read = read_bundle(written.path)
    for field in ("path", "digest", "version", "inputs_digest", "groups", "certificates", "stems"):
        assert getattr(read, field) == getattr(written, field), field
    assert [p.to_json() for p in read.plans] == [p.to_json() for p in written.plans] and [p.groups for p in read.plans] == [p.groups for p in written.plans]
    assert sorted(read.sources, key=lambda s: s.name) == sorted(written.sources, key=lambda s: s.name)
    assert list(read.plans[1].steps(3))[0].kind.value == "wait"


def test_equal_inputs_give_equal_bytes(made, tmp_path):
    one, two = (write_bundle(p, asks=a, out=tmp_path / name) for name in "ab" for p, a in [made()])
    assert one.digest == two.digest
    assert all((one.path / n).read_bytes() == (two.path / n).read_bytes() for n in os.listdir(one.path))
    proved, asks = made(knobs=("W=1", "k=1"))
    assert write_bundle(proved, asks=asks, out=tmp_path / "c").digest != one.digest


def test_what_the_echo_was_compared_on_stands_in_the_manifest(made, tmp_path, written):
    proved, asks = made()
    checked = write_bundle(proved, asks=asks, out=tmp_path / "e", echo=EchoReport(4, 99, "ab"))
    assert json.loads((checked.path / "manifest.json").read_text())["echo"] == {"checked": True, "ranks": 4, "steps": 99, "digest": "ab"}
    assert json.loads((written.path / "manifest.json").read_text())["echo"] == {"checked": False}
    assert checked.digest != written.digest and checked.inputs_digest == written.inputs_digest


def test_a_group_that_keeps_stock_says_why(asked, tmp_path):
    ask = asked("2x2", name="halves", shapes=((4, 4),))
    wide = asked("2x2", name="wide", shapes=((4, 4),), gathered=Dtype.FP64)
    proved = [Proved(lower(ask, c), "{}") for c in Collective]
    bundle = write_bundle(proved, asks=[ask, wide], out=tmp_path / "b")
    assert isinstance(bundle.groups[1].all_gather, StockCause) and "fp64" in bundle.groups[1].all_gather.reason
    assert read_bundle(bundle.path).groups == bundle.groups


def test_a_bundle_of_stock_groups_alone_has_no_plans(asked, tmp_path):
    bundle = write_bundle([], asks=[asked("2x2", shapes=((4, 4),), gathered=Dtype.FP64)], out=tmp_path / "b")
    assert read_bundle(bundle.path).plans == () and bundle.groups[0].reduce_scatter.reason


@pytest.mark.parametrize("at", [0, -1])
def test_a_changed_byte_in_any_file_is_found_and_named(written, at):
    for name in sorted(os.listdir(written.path)):
        file = written.path / name
        keep = file.read_bytes()
        changed = bytearray(keep)
        changed[at] ^= 1
        file.write_bytes(changed)
        diagnostic, code = refused(read_bundle, written.path)
        assert code is Exit.INTEGRITY and diagnostic.code == "C001", name
        assert ("manifest" if name.startswith("manifest") else name) in diagnostic.sentence
        file.write_bytes(keep)
    read_bundle(written.path)


@pytest.mark.parametrize("change", ["missing", "longer", "link", "folder", "extra"])
def test_a_file_that_is_not_the_one_that_was_written_is_found(written, change, tmp_path):
    file = written.path / "block.rs.plan.json"
    if change == "longer":
        file.write_bytes(file.read_bytes() + b" ")
    elif change == "extra":
        (written.path / "more.hpp").write_text("//")
    else:
        file.rename(tmp_path / "kept")
        if change == "link":
            file.symlink_to(tmp_path / "kept")
        elif change == "folder":
            file.mkdir()
    diagnostic, code = refused(read_bundle, written.path)
    assert code is Exit.INTEGRITY and ("more.hpp" if change == "extra" else file.name) in diagnostic.sentence


def reseal(path, change):
    """Change the manifest and seal it again, as one would who wants to be believed."""
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    text = canonical(manifest).encode()
    (path / "manifest.json").write_bytes(text)
    (path / "manifest.sha256").write_text(f"{hashlib.sha256(text).hexdigest()}  manifest.json\n")


def test_a_manifest_that_was_sealed_again_does_not_vouch_for_another_plan(written):
    plan = written.path / "block.ag.plan.json"
    plan.write_bytes(plan.read_bytes().replace(b'"nodes":2', b'"nodes":3', 1))

    def vouch(manifest):
        data = plan.read_bytes()
        manifest["files"][plan.name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}

    reseal(written.path, vouch)
    diagnostic, code = refused(read_bundle, written.path)
    assert code is Exit.INTEGRITY and plan.name in diagnostic.sentence


@pytest.mark.parametrize("change", [
    lambda m: m.update(schema="tidec.bundle/9"), lambda m: m.pop("plans"), lambda m: m["files"].update({"../x": {"sha256": "", "size": 0}}),
    lambda m: m["plans"][0].update(stem="embed.rs"), lambda m: m["groups"][0]["all_gather"].update(plan="none"), lambda m: m.update(plans=7),
    lambda m: m.update(inputs_digest="0" * 64), lambda m: m["plans"][0].update(collective="reduce_scatter"), lambda m: m.update(files=[]),
])
def test_a_manifest_that_says_other_things_is_refused(written, change):
    reseal(written.path, change)
    diagnostic, code = refused(read_bundle, written.path)
    assert code is Exit.INTEGRITY and diagnostic.reason


def test_what_a_build_adds_is_not_a_foreign_file(written):
    (written.path / "lib").mkdir()
    (written.path / "build.json").write_text("{}")
    assert read_bundle(written.path).digest == written.digest


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path):
    diagnostic, code = refused(read_bundle, tmp_path)
    assert code is Exit.USAGE and "is no bundle" in diagnostic.sentence


def test_a_bundle_stands_in_no_other_place_and_replaces_one_only_by_force(made, tmp_path, written):
    proved, asks = made(names=("embed",))
    diagnostic, code = refused(write_bundle, proved, asks=asks, out=written.path)
    assert diagnostic.code == "C002" and code is Exit.USAGE
    assert read_bundle(written.path).digest == written.digest
    again = write_bundle(proved, asks=asks, out=written.path, is_forced=True)
    assert again.path == written.path and read_bundle(again.path).digest == again.digest != written.digest


def test_a_bundle_says_on_how_many_ctas_its_kernels_run(made, tmp_path):
    proved, asks = made(knobs=("ctas_sum=7", "ctas_land=3"))
    written = write_bundle(proved, asks=asks, out=tmp_path / "b")
    assert written.ctas == read_bundle(tmp_path / "b").ctas == (Ctas(7, 3),) * len(proved)
    others, _ = made()
    assert [p.plan.digest for p in others] == [p.plan.digest for p in proved], "they change no plan"


@pytest.mark.parametrize("count", [0, 1025, True, "4"])
def test_a_number_of_ctas_that_is_none_is_found(count):
    with pytest.raises(ValueError, match="is no number of CTAs"):
        ctas_of([Entry("g", 1, "g.ag", "g.rs")], [{"ctas_sum": 4, "ctas_land": count}], ["g.ag"])
