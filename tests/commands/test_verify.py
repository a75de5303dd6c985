"""`tidec verify`: what it prints, its JSON, its exit codes, and what --prove sees beside."""
from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from tidec.emit.manifest import canonical

pytestmark = pytest.mark.usefixtures("kept_proofs")
GROUPS = '{"groups": [{"name": "block", "params": [{"name": "w", "shape": [7, 3], "dtype": "bf16"}, {"name": "b", "shape": [33], "dtype": "bf16"}]}]}'


@pytest.fixture
def bundle(told, group, tmp_path):
    """`bundle("3x2", ...)` compiles GROUPS into a folder of its own."""

    def make(topo: str, *rest: str) -> Path:
        out = tmp_path / f"b{topo}"
        assert told("compile", "--topo", topo, "--group", group(GROUPS), "-o", out, "--no-echo", *rest).endswith("exit 0\n")
        return out

    return make


def reseal(folder: Path, name: str, text: str) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / name).write_text(text)
    manifest["files"][name] = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "size": len(text)}
    written = canonical(manifest)
    (folder / "manifest.json").write_text(written)
    (folder / "manifest.sha256").write_text(f"{hashlib.sha256(written.encode()).hexdigest()}  manifest.json\n")


def test_the_text_reads(bundle, told, golden):
    golden("cli/verify.txt", told("verify", bundle("3x2")))
    golden("cli/verify-graph.txt", told("verify", bundle("3x3")))


def test_the_json_has_what_the_design_names(bundle, json_of):
    code, content = json_of("verify", bundle("3x2"))
    assert (code, content["exit"], content["schema"]) == (0, 0, "tidec.verify/1")
    assert (content["verdict"], content["order_by"]) == ("proved", "theorem")
    assert content["checked"] and all(set(c) == {"file", "what"} for c in (*content["checked"], *content["trusted"]))
    assert content["plans"] == [{"plan": f"block.{c}", "order_by": "theorem", "unfolded_nodes": []} for c in ("ag", "rs")]
    code, content = json_of("verify", bundle("3x3"))
    assert (code, content["order_by"], content["plans"][1]["unfolded_nodes"]) == (0, "graph", [3])


def test_a_changed_file_is_exit_5_and_named(bundle, told, json_of, golden):
    folder = bundle("3x2")
    file = folder / "block.rs.hpp"
    file.write_bytes(file.read_bytes()[:-1] + b" ")
    golden("cli/verify-tampered.txt", told("verify", folder))
    code, content = json_of("verify", folder)
    assert code == content["exit"] == 5 and content["error"]["code"] == "C001" and content["error"]["sentence"].startswith("block.rs.hpp")


def test_a_refuted_claim_is_exit_1_and_an_unknown_one_exit_3(bundle, told):
    folder = bundle("3x2")
    text = (folder / "block.ag.cert.json").read_text()
    for verdict, code in (("refuted", 1), ("unknown", 3)):
        reseal(folder, "block.ag.cert.json", text.replace('"verdict":"proved"', f'"verdict":"{verdict}"', 1))
        assert told("verify", folder).endswith(f"exit {code}\n")


def test_what_is_no_bundle_is_exit_2(told, tmp_path):
    assert told("verify", tmp_path / "nothing").endswith("exit 2\n")
    assert told("verify").endswith("exit 2\n")


@pytest.mark.parametrize("topo", ["2x2", "1x2"])
def test_prove_proves_and_emits_again(topo, bundle, told):
    text = told("verify", bundle(topo), "--prove")
    assert text.endswith("exit 0\n") and re.search(r"z3 proved \d+ claims of 2 programs again", text)
    assert re.search(r"\d sources emitted again, byte for byte the same", text) and "tidec verify --prove" not in text.split("\n", 1)[1]


def test_prove_decides_what_is_no_theorem_and_too_large_to_unfold(bundle, told, monkeypatch):
    monkeypatch.setattr("tidec.verify.recheck_unfold.MAX_POINTS", 1000)
    folder = bundle("3x2", "--set", "chunks=5")
    text = told("verify", folder)
    assert "V901" in text and "tidec verify --prove" in text and text.endswith("exit 3\n")
    text = told("verify", folder, "--prove")
    assert re.search(r"block.rs +proof +for every node count", text) and "too large to unfold, and left to z3" in text and text.endswith("exit 0\n")


def test_only_prove_sees_a_source_that_its_plan_does_not_emit(bundle, told):
    """The checker cannot say what C++ means: sources are taken at their digests until they are emitted again."""
    folder = bundle("2x2")
    for name, old, new in (("block.ag.hpp", "int64_t M = 2;", "int64_t M = 3;"), ("tables.hpp", "kArenaBytes = 1", "kArenaBytes = 2"), ("module.cpp", "default: break", "default: ;break"),
                               ("kernels.cu", "\n", "\n\n")):
        keep = (folder / name).read_text()
        assert old in keep
        reseal(folder, name, keep.replace(old, new, 1))
        assert told("verify", folder).endswith("exit 0\n")
        text = told("verify", folder, "--prove")
        assert text.endswith("exit 5\n") and f"error[C001 tampered]: {name}" in text
        reseal(folder, name, keep)


def test_a_copy_under_another_name_verifies(bundle, told, tmp_path):
    shutil.copytree(bundle("2x2"), tmp_path / "a folder elsewhere")
    assert told("verify", tmp_path / "a folder elsewhere").endswith("exit 0\n")


@pytest.mark.parametrize("options", [(), ("--no-echo",)], ids=" ".join)
def test_a_bundle_of_no_plan_is_what_compile_made(told, json_of, group, tmp_path, options):
    model = group('{"params": [{"name": "w", "shape": [64, 16], "dtype": "bf16", "shard_dim": 1}]}')
    assert told("compile", "--topo", "3x2", "--group", model, "-o", tmp_path / "b", "--stock-ok", *options).endswith("exit 0\n")
    for more in ((), ("--prove",)):
        code, content = json_of("verify", tmp_path / "b", *more)
        assert (code, content["verdict"], content["plans"]) == (0, "proved", [])
    # An echo that has steps of no plan is still no echo.
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    manifest["echo"] = {"checked": True, "ranks": 6, "steps": 1, "digest": "0" * 64}
    (tmp_path / "b" / "manifest.json").write_text(canonical(manifest))
    reseal(tmp_path / "b", "ask.json", (tmp_path / "b" / "ask.json").read_text())
    assert "what it says of the echo is no such thing" in told("verify", tmp_path / "b")
