"""A bundle re-checked without a solver: what is accepted and by what, what is refused and with which file, code and exit."""
from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidec.emit.manifest import canonical
from tidec.errors import Exit, TidecError
from tidec.inputs.ask import Mode
from tidec.inputs.capability import Lowering
from tidec.verify import recheck_unfold
from tidec.verify.recheck import _check_premises, recheck
from tidec.verify.recheck_layout import Facts
from tidec.verify.recheck_words import Order

ROOT = Path(__file__).resolve().parents[2]
CHECKER = sorted((ROOT / "tidec" / "verify").glob("recheck*.py"))


def refused(path: Path) -> tuple[str, str, Exit]:
    """The code, the whole message and the exit of a bundle that is refused."""
    with pytest.raises(TidecError) as caught:
        recheck(path)
    return caught.value.diagnostics[0].code, str(caught.value), caught.value.exit


def seal(folder: Path, manifest: dict) -> None:
    text = canonical(manifest)
    (folder / "manifest.json").write_text(text)
    (folder / "manifest.sha256").write_text(f"{hashlib.sha256(text.encode()).hexdigest()}  manifest.json\n")


def reseal(folder: Path, name: str, data: str) -> None:
    """Another text for a file, listed with its digest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / name).write_text(data)
    manifest["files"][name] = {"sha256": hashlib.sha256(data.encode()).hexdigest(), "size": len(data)}
    if name == "ask.json":
        manifest["inputs_digest"] = manifest["files"][name]["sha256"]
    seal(folder, manifest)


# ---- what is accepted


@pytest.mark.parametrize(("topo", "lowering"), [("2x2", Lowering.P2P), ("3x2", Lowering.P2P), ("3x1", Lowering.P2P), ("1x2", Lowering.P2P), ("1x1", Lowering.P2P), ("1x2", Lowering.NVLS), pytest.param("3x2", Lowering.NVLS, marks=pytest.mark.slow)])
def test_a_bundle_of_default_knobs_is_a_theorem(topo, lowering, made):
    report = recheck(made(topo, lowering=lowering))
    assert (report.verdict, report.order_by) == ("proved", Order.THEOREM)
    assert [p.stem for p in report.plans] == ["block.ag", "block.rs", "head.ag", "head.rs"] and all(p.nodes == () for p in report.plans)


# As a root and its blocks.
ONE_LANDING = """{"groups": [{"name": "block", "landings": 1, "params": [{"name": "w", "shape": [7, 3], "dtype": "bf16"}]},
                            {"name": "head", "repeat": 2, "params": [{"name": "h", "shape": [5, 2], "dtype": "bf16"}]}]}"""


@pytest.mark.parametrize("topo", ["1x2", "3x2"])
def test_a_bundle_in_which_a_group_has_one_landing_is_a_theorem(topo, made):
    path = made(topo, groups=ONE_LANDING)
    assert recheck(path).order_by is Order.THEOREM
    assert [next(r for r in json.loads((path / f"{g}.ag.plan.json").read_text())["arena"]["regions"] if r["name"] == "landing")["extents"][0] for g in ("block", "head")] == [1, 2]


@pytest.mark.parametrize("landings", [2, 0, True, "1"])
def test_a_plan_of_other_landings_than_its_group_asks_for_is_refused(landings, spoilt):
    folder = spoilt("1x2", groups=ONE_LANDING)
    ask = json.loads((folder / "ask.json").read_text())
    ask["groups"][0]["signature"]["landings"] = landings
    reseal(folder, "ask.json", canonical(ask))
    assert refused(folder)[0] == "C001"
    del ask["groups"][0]["signature"]["landings"]
    reseal(folder, "ask.json", canonical(ask))
    code, told, _ = refused(folder)
    assert code == "C001" and "its schedule or its knobs are not those that ask.json asks for" in told


@pytest.mark.parametrize(("topo", "settings", "nodes"), [
    ("3x3", (), (3,)), ("1x3", (), (1,)), ("3x2", ("n_part=3", "n_out=2"), (3,)), ("3x2", ("chunks=5",), (3,)), ("3x2", ("stripes=3", "chunks=6"), (3,)),
    ("7x2", ("chunks=5",), (3, 5, 6)),
])
def test_a_bundle_of_other_knobs_is_unfolded(topo, settings, nodes, made):
    report = recheck(made(topo, *settings))
    assert report.order_by is Order.GRAPH
    assert {p.stem: p.nodes for p in report.plans}["block.rs"] == nodes


def test_a_group_that_keeps_stock_has_no_plan_and_says_why(made, spoilt):
    groups = """{"groups": [{"name": "a", "params": [{"name": "w", "shape": [4, 2], "dtype": "bf16"}]},
        {"name": "b", "params": [{"name": "u", "shape": [4, 2], "dtype": "bf16", "requires_grad": false}]}]}"""
    assert [p.stem for p in recheck(made("2x2", groups=groups)).plans] == ["a.ag", "a.rs", "b.ag"]
    folder = spoilt("2x2", groups=groups)
    manifest = json.loads((folder / "manifest.json").read_text())
    stock = manifest["groups"][1]["reduce_scatter"]["stock"]
    stock["reason"] = "other words"
    seal(folder, manifest)
    assert recheck(folder).verdict == "proved"
    stock["parameter"] = "nobody"
    seal(folder, manifest)
    assert refused(folder)[0] == "C001"
    stock["parameter"] = ""
    manifest["groups"][0]["reduce_scatter"] = manifest["groups"][1]["reduce_scatter"]
    seal(folder, manifest)
    assert refused(folder)[0] == "C001" and "no plan of its reduce_scatter" in refused(folder)[1]


def test_what_is_taken_at_its_word_is_said(made):
    told = " ".join(c.what for c in recheck(made("2x2")).trusted)
    assert "emitted sources" in told and "echo" in told and "z3's proofs of the theorems" in told and "axioms" in told
    few = [c for c in recheck(made("7x2", "chunks=5")).trusted if c.file.endswith(".plan.json")]
    assert [c.file for c in few] == ["block.rs.plan.json", "head.rs.plan.json"] and all("at M = 7 as at M = 3, 5, 6" in c.what for c in few)
    assert not [c for c in recheck(made("3x2", "chunks=5")).trusted if c.file.endswith(".plan.json")]


# ---- integrity: exit 5 and the file's name


def test_one_byte_changed_in_any_file_names_it(spoilt):
    folder = spoilt("2x2")
    for file in sorted(folder.iterdir()):
        keep = file.read_bytes()
        for at in (0, len(keep) // 2, len(keep) - 1):
            file.write_bytes(keep[:at] + bytes([keep[at] ^ 1]) + keep[at + 1 :])
            code, told, exit_code = refused(folder)
            assert (code, exit_code) == ("C001", Exit.INTEGRITY) and (file.name if file.suffix != ".sha256" else "manifest.json") in told
        file.write_bytes(keep)
    assert recheck(folder).verdict == "proved"


@pytest.mark.parametrize("name", ["block.ag.hpp", "head.rs.cert.json", "ask.json", "manifest.sha256", "tables.hpp"])
def test_a_file_that_is_missing_or_no_file_is_named(name, spoilt):
    folder = spoilt("2x2")
    data = (folder / name).read_bytes()
    (folder / name).unlink()
    assert refused(folder)[2] is Exit.INTEGRITY and name in refused(folder)[1]
    (folder.parent / "elsewhere").write_bytes(data)
    (folder / name).symlink_to(folder.parent / "elsewhere")
    assert refused(folder)[2] is Exit.INTEGRITY and name in refused(folder)[1]
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert refused(folder)[2] is Exit.INTEGRITY and name in refused(folder)[1]


@pytest.mark.parametrize(("knob", "values"), [
    ("ctas_sum", (0, -5, 1025, "x", None, True)), ("ctas_land", (0, 10**9, False)), ("pacing", (True, 0, None)), ("cast", (0, None)), ("chunk_bytes", (-1, None, False)),
    ("W", (0, 3, True)), ("n_out", (0, "all", None)), ("stripes", (9,)),
])
def test_a_knob_that_no_plan_is_made_of_is_one_that_there_is_too(knob, values, spoilt):
    folder = spoilt("2x2")
    asked = (folder / "ask.json").read_text()
    for value in (*values, "no such knob"):
        ask = json.loads(asked)
        for group in ask["groups"]:
            group["knobs"][knob] = value
            if value == "no such knob":
                del group["knobs"][knob]
        reseal(folder, "ask.json", json.dumps(ask, sort_keys=True, separators=(",", ":")))
        code, told, exit_code = refused(folder)
        assert (code, exit_code) == ("C001", Exit.INTEGRITY) and "ask.json" in told and "the knobs of a group" in told, value
    reseal(folder, "ask.json", asked)
    assert recheck(folder).verdict == "proved"


def test_a_file_that_nobody_lists_is_named(spoilt):
    folder = spoilt("2x2")
    (folder / "more.hpp").write_text("int x;\n")
    assert refused(folder)[0] == "C001" and refused(folder)[1].startswith("error[C001 tampered]: more.hpp")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["z.ag.plan.json"] = {"sha256": hashlib.sha256(b"{}").hexdigest(), "size": 2}
    (folder / "more.hpp").unlink()
    (folder / "z.ag.plan.json").write_text("{}")
    seal(folder, manifest)
    assert "z.ag.plan.json" in refused(folder)[1]


def test_what_a_build_added_is_listed_by_itself(spoilt):
    folder = spoilt("2x2")
    (folder / "lib").mkdir()
    (folder / "lib" / "echo-x86_64.so").write_bytes(b"\x7fELF")
    (folder / "build.log").write_bytes(b"g++\n")
    files = {name: {"sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(), "size": len((folder / name).read_bytes())} for name in ("lib/echo-x86_64.so", "build.log")}
    report = recheck(folder)            # a build that never ended: it is told, and nothing of it is read
    assert report.verdict == "proved" and [c.file for c in report.checked if "stopped before it ended" in c.what] == ["lib"]
    (folder / "build.sha256").write_bytes(b"")
    assert refused(folder)[0] == "C001" and "build.json" in refused(folder)[1]
    text = canonical({"files": files, "schema": "tidec.build/1"})
    (folder / "build.json").write_text(text)
    (folder / "build.sha256").write_text(f"{hashlib.sha256(text.encode()).hexdigest()}  build.json\n")
    assert recheck(folder).verdict == "proved"
    (folder / "lib" / "echo-x86_64.so").write_bytes(b"\x7fELf")
    assert refused(folder)[0] == "C001" and "lib/echo-x86_64.so" in refused(folder)[1]
    (folder / "lib" / "echo-x86_64.so").write_bytes(b"\x7fELF")
    (folder / "lib" / "other.so").write_bytes(b"")
    assert "lib/other.so" in refused(folder)[1]


@pytest.mark.parametrize(("name", "schema"), [
    ("manifest.json", "tidec.bundle/0"), ("ask.json", "tidec.ask/0"), ("block.rs.cert.json", "tidec.certificate/0"), ("manifest.json", "tidec.bundle/2"),
])
def test_another_schema_is_refused(name, schema, spoilt):
    folder = spoilt("2x2")
    content = json.loads((folder / name).read_text())
    content["schema"] = schema
    if name == "manifest.json":
        seal(folder, content)
    else:
        reseal(folder, name, canonical(content))
    assert refused(folder)[2] is Exit.INTEGRITY and name in refused(folder)[1]


def test_a_file_that_is_not_spelt_canonically_is_refused(spoilt):
    folder = spoilt("2x2")
    for name in ("ask.json", "block.ag.cert.json"):
        text = (folder / name).read_text()
        reseal(folder, name, json.dumps(json.loads(text), indent=1))
        assert refused(folder)[1].startswith(f"error[C001 tampered]: {name}") and "canonically" in refused(folder)[1]
        reseal(folder, name, text)
    text = (folder / "block.ag.cert.json").read_text()
    reseal(folder, "block.ag.cert.json", text.replace('"nodes":2', '"nodes":2.0'))
    assert "no integer" in refused(folder)[1]
    reseal(folder, "block.ag.cert.json", text.replace('{"assumes"', '{"assumes":[],"assumes"'))
    assert "canonically" in refused(folder)[1]


@pytest.mark.parametrize(("name", "data"), [("block.ag.cert.json", "[]"), ("ask.json", "{}"), ("ask.json", '"x"'), ("block.rs.cert.json", "{"), ("ask.json", "[" * 100_000), ("ask.json", "")])
def test_a_file_that_is_nothing_is_refused(name, data, spoilt):
    folder = spoilt("2x2")
    reseal(folder, name, data)
    assert refused(folder)[2] is Exit.INTEGRITY and name in refused(folder)[1]


def test_a_folder_that_is_no_bundle_is_a_usage_error(tmp_path):
    assert refused(tmp_path)[0] == "P001" and refused(tmp_path / "nothing")[0] == "P001"


# ---- certificates


def with_claim(folder: Path, name: str, change) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    reseal(folder, name, canonical(content))


@pytest.mark.parametrize(("verdict", "code", "exit_code"), [
    ("refuted", "V102", Exit.REFUTED), ("vacuous", "V902", Exit.REFUTED), ("unknown", "V901", Exit.UNKNOWN), ("perhaps", "C001", Exit.INTEGRITY),
])
def test_a_claim_that_is_not_proved_decides_the_exit(verdict, code, exit_code, spoilt):
    folder = spoilt("2x2")

    def change(content):
        next(c for c in content["claims"] if c["code"] == "V102")["verdict"] = verdict

    with_claim(folder, "block.rs.cert.json", change)
    assert refused(folder)[0] == code and refused(folder)[2] is exit_code and "block.rs.cert.json" in refused(folder)[1]


@pytest.mark.parametrize("change", [
    lambda c: c["claims"].clear(),
    lambda c: c.update(claims=[x for x in c["claims"] if x["code"] != "V201" or x["scope"] == "M = 1"]),
    lambda c: c.update(claims=[x for x in c["claims"] if x["scope"] == "M = 1"]),
    lambda c: c.update(claims=[x for x in c["claims"] if x["code"] != "V402"]),
    lambda c: c["claims"][0].update(seconds=1),
    lambda c: c.update(plan="0" * 64),
    lambda c: c.update(program="0" * 64),
    lambda c: c.update(nodes=3),
    lambda c: c["assumes"].pop(),
    lambda c: c.update(more=1),
], ids=["no claims", "a code less", "only of another branch", "none of the layout", "a field of a claim more", "another plan", "another program", "another M", "an axiom less", "a field more"])
def test_a_certificate_that_is_not_of_its_plan_is_refused(change, spoilt):
    folder = spoilt("2x2")
    with_claim(folder, "block.rs.cert.json", change)
    assert refused(folder)[2] is Exit.INTEGRITY and "block.rs.cert.json" in refused(folder)[1]


def test_two_certificates_exchanged_are_refused(spoilt):
    folder = spoilt("2x2")
    one, two = ((folder / f"{g}.rs.cert.json").read_text() for g in ("block", "head"))
    reseal(folder, "block.rs.cert.json", two)
    reseal(folder, "head.rs.cert.json", one)
    assert "block.rs.cert.json" in refused(folder)[1]


# ---- premises and size


def facts(nodes: int, lanes: int, **knobs) -> Facts:
    return Facts("p", "reduce_scatter", nodes, lanes, dict(W=lanes, k=1, n_out="full", n_part=1, n_stg=2, chunks=1, stripes=1) | knobs, {"premises": []})


@pytest.mark.parametrize(("plan", "fits"), [
    (facts(9, 8, W=3), False), (facts(8, 8, W=3), True), (facts(9, 8, W=4), True), (facts(10, 8, W=3), True), (facts(4, 2, k=2, n_out=1), False), (facts(2, 2, k=2, n_out=1), True),
    (facts(4, 2, W=3), False), (facts(4, 2, chunks=3, stripes=2), False), (facts(1, 8, W=3), True),
])
def test_a_plan_outside_the_premises_is_refused(plan, fits):
    """W = 3 at L = 8 collides first at M = 9; an outbox holds the blocks of a round."""
    if fits:
        _check_premises(plan)
        return
    with pytest.raises(TidecError) as caught:
        _check_premises(plan)
    assert caught.value.diagnostics[0].code == "P013" and caught.value.exit is Exit.REFUTED


def test_a_graph_that_is_too_large_is_unknown(made, monkeypatch):
    monkeypatch.setattr(recheck_unfold, "MAX_POINTS", 1000)
    code, told, exit_code = refused(made("3x2", "chunks=5"))
    assert (code, exit_code) == ("V901", Exit.UNKNOWN) and "more than 1000" in told and "--prove" in told
    assert recheck(made("3x2")).order_by is Order.THEOREM
    report = recheck(made("3x2", "chunks=5"), will_prove=True)
    assert report.order_by is Order.PROOF and {p.order for p in report.plans} == {Order.PROOF, Order.THEOREM}


# ---- no code shared, nothing loaded, and in time


@pytest.mark.parametrize("file", [f.name for f in CHECKER])
def test_the_checker_imports_nothing_of_the_generator_or_the_prover(file):
    own = {f"tidec.verify.{f.stem}" for f in CHECKER} | {"tidec.errors"}
    for node in ast.walk(ast.parse((ROOT / "tidec" / "verify" / file).read_text(encoding="utf-8"))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name in own or name.split(".")[0] in sys.stdlib_module_names, f"{file}:{node.lineno} imports {name}"
        assert not (isinstance(node, ast.ImportFrom) and node.level)
        assert not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec", "compile", "__import__"))


def test_a_bundle_is_verified_where_nothing_is_installed(made):
    hide = f"""import sys
for name in ("z3", "torch", "numpy", "networkx", "jinja2", "pybind11"): sys.modules[name] = None
import tidec
print(tidec.recheck({str(made('3x2'))!r}).verdict)
loaded = [m for m in sys.modules if m.startswith("tidec.") and sys.modules[m] is not None]
assert all(m in ("tidec.errors", "tidec.verify") or m.startswith("tidec.verify.recheck") for m in loaded), loaded"""
    told = subprocess.run([sys.executable, "-I", "-c", f"sys = __import__('sys'); sys.path.insert(0, {str(ROOT)!r})\n{hide}"], capture_output=True, text=True, timeout=60, check=False)
    assert (told.returncode, told.stdout) == (0, "proved\n"), told.stderr


LLAMA = (ROOT / "examples" / "llama70b.json").read_text(encoding="utf-8")
PASSES = 10
ONE_PASS = """import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tidec.verify.recheck import check_plan, recheck
from tidec.verify.recheck_ask import check_ask
from tidec.verify.recheck_files import read_files
from tidec.verify.recheck_theorems import load
files, theorems, took = read_files(Path(sys.argv[2])), load(), {}
for w in check_ask(files):
    plan, certificate = files.listed[f"{w.stem}.plan.json"], files.listed[f"{w.stem}.cert.json"]
    start = time.process_time()
    order = check_plan(w, plan, certificate, theorems).order.value
    took[w.stem] = (order, 1000 * (time.process_time() - start))
start = time.process_time()
recheck(sys.argv[2])
took["all"] = ("theorem", 1000 * (time.process_time() - start))
print(json.dumps(took))"""


@pytest.mark.slow
@pytest.mark.parametrize(("topo", "one_ms"), [("8x8", 2.0), ("1024x8", 10.0)])
@pytest.mark.parametrize(("mode", "is_solved"), [(Mode.IN_PLACE, True), (Mode.SLOT_REUSE, True), (Mode.IN_PLACE, False)], ids=["in place", "slot reuse", "default knobs"])
def test_a_certificate_is_checked_in_its_budget(topo, one_ms, mode, is_solved, made):
    """DESIGN section 5: at most 2 ms a certificate at 8x8 and 10 ms at 1024x8, a whole Llama-3.1-70B at most 60 ms.

    That is in a process that has just imported the checker and read the files, which checks every certificate once, one after the other; and of the
    process's own time, as others may have its core meanwhile: nothing in it waits or runs elsewhere. The best of ten such processes, as the caches are shared too.
    """
    path, best = made(topo, groups=LLAMA, mode=mode, is_solved=is_solved), {}
    for _ in range(PASSES):
        told = subprocess.run([sys.executable, "-I", "-c", ONE_PASS, str(ROOT), str(path)], capture_output=True, text=True, timeout=60, check=True).stdout
        for stem, (order, ms) in json.loads(told).items():
            assert order == "theorem", stem
            best[stem] = min(best.get(stem, ms), ms)
    assert len(best) == 7 and best.pop("all") <= 60 and all(ms <= one_ms for ms in best.values()), best
