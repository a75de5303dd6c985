"""The public names do from Python what the commands do."""
import json
import subprocess
import sys

import pytest

import tidec
from tidec import pipeline
from tidec.api import _target
from tidec.errors import TidecError
from tidec.inputs.signature import read_groups

GROUP = '{"params": [{"name": "w", "shape": [33, 5], "dtype": "bf16"}]}'


def test_a_bundle_is_compiled_loaded_and_stepped_through(tmp_path):
    (tmp_path / "g.json").write_text(GROUP, encoding="utf-8")
    made = tidec.compile("3x2", tmp_path / "g.json", out=tmp_path / "bundle", knobs={"W": 1, "k": 1})
    read = tidec.load(tmp_path / "bundle")
    assert read.digest == made.digest and len(read.plans) == 2
    assert [dict(p.knobs).get("W") for p in read.plans] == [None, 1]
    kinds = {step.kind.value for step in read.plans[1].steps(0)}
    assert {"copy", "sum", "put", "land"} <= kinds


def test_gradients_in_landings_are_a_mode_of_its_own(tmp_path):
    (tmp_path / "g.json").write_text(GROUP, encoding="utf-8")
    tidec.compile("3x1", tmp_path / "g.json", out=tmp_path / "bundle", mode="slot_reuse", is_echoed=False)
    assert json.loads((tmp_path / "bundle" / "ask.json").read_text())["mode"] == "slot_reuse"
    with pytest.raises(TidecError, match="there is no mode"):
        tidec.compile("3x1", tmp_path / "g.json", out=tmp_path / "b", mode="sideways")


def test_what_the_command_refuses_is_refused_here(tmp_path):
    (tmp_path / "g.json").write_text(GROUP, encoding="utf-8")
    with pytest.raises(TidecError, match="P006"):
        tidec.compile("3x2", tmp_path / "g.json", out=tmp_path / "b", knobs={"W": 3})
    with pytest.raises(TidecError, match="P004"):
        tidec.compile("3x99", tmp_path / "g.json", out=tmp_path / "b")
    with pytest.raises(TidecError, match="is no bundle"):
        tidec.load(tmp_path)


@pytest.mark.parametrize("read", [tidec.load, tidec.recheck])
def test_a_bundle_that_is_not_there_is_told_from_one_that_is_none(read, tmp_path):
    with pytest.raises(TidecError, match="is no bundle\n  reason: it has no manifest.json"):
        read(tmp_path)
    with pytest.raises(TidecError, match="is no bundle\n  reason: there is no such folder"):
        read(tmp_path / "nosuch")


def test_install_names_the_targets_that_it_has():
    for name, wanted in (("cuda", 'P001 usage]: there is no target "cuda"\n  help: one of: auto, host, nccl'), (3, "there is no target 3\n"),
                         ("loopback", "E004 .*target loopback under FSDP2 is not built yet")):
        with pytest.raises(TidecError, match=wanted.replace("]", "\\]")):
            _target(name)


ORDERS = """{"schema": "tidec.order/1", "ahead": 0, "events": [
  {"unshard": "g"}, {"reshard": "g"}, {"unshard": "g"}, {"reshard": "g"}, {"reduce": "g"}, {"read": "g"}]}"""


def test_a_model_is_held_against_its_order_and_its_budget(tmp_path, monkeypatch):
    """As with --order and --budget: the arena of 3x2 takes some KiB, so that a KiB is too little and a GiB enough."""
    (tmp_path / "g.json").write_text(GROUP, encoding="utf-8")
    (tmp_path / "order.json").write_text(ORDERS, encoding="utf-8")
    made = []
    arenas = pipeline.plan_arena
    monkeypatch.setattr(pipeline, "plan_arena", lambda *given, **named: made.append(arenas(*given, **named)) or made[-1])
    ask = dict(out=tmp_path / "b", is_forced=True, is_echoed=False)
    tidec.compile("3x2", tmp_path / "g.json", order=tmp_path / "order.json", budget_gib=1, **ask)
    tidec.compile("3x2", tmp_path / "g.json", **ask)
    assert [(a.order.origin, a.order.ahead) for a in made] == [(str(tmp_path / "order.json"), 0), ("", 1)]
    with pytest.raises(TidecError, match="V401 over-budget.*\n.*the budget is 1.00 KiB"):
        tidec.compile("3x2", tmp_path / "g.json", budget_gib=2**-20, **ask)
    (tmp_path / "order.json").write_text(ORDERS.replace('"g"', '"h"'), encoding="utf-8")
    with pytest.raises(TidecError, match="P002"):
        tidec.compile("3x2", tmp_path / "g.json", order=tmp_path / "order.json", **ask)


@pytest.mark.parametrize("gib", [0, -1, 2**-31, float("nan"), float("inf"), 1e308, True, "40"])
def test_a_budget_that_is_no_size_is_refused(tmp_path, gib):
    (tmp_path / "g.json").write_text(GROUP, encoding="utf-8")
    with pytest.raises(TidecError) as refused:
        tidec.compile("3x2", tmp_path / "g.json", out=tmp_path / "b", budget_gib=gib)
    (found,) = refused.value.diagnostics
    assert found.code == "P001" and f"budget_gib={gib!r}" in found.sentence and found.help


MOSTLY_PADDING = '{"params": [{"name": "w", "shape": [2, 5], "dtype": "bf16"}]}'


def test_what_the_command_warns_of_is_warned_of_here(tmp_path):
    """Six ranks share two rows, so that four of six are padding. The line that is told is the caller's."""
    (tmp_path / "g.json").write_text(MOSTLY_PADDING, encoding="utf-8")
    with pytest.warns(tidec.TidecWarning) as found:
        bundle = tidec.compile("3x2", tmp_path / "g.json", out=tmp_path / "bundle", is_echoed=False)
    (warning,) = found
    assert len(bundle.plans) == 2 and warning.filename == __file__
    assert warning.message.diagnostic.code == "P015" and str(warning.message) == str(warning.message.diagnostic) and "40 of 60 bytes" in str(warning.message)


def test_what_is_warned_of_where_install_has_plans_made_is_told_with_its_lines(tmp_path, monkeypatch):
    fsdp = pytest.importorskip("tidec.run.fsdp")
    signature, told = read_groups(MOSTLY_PADDING, file="g.json"), []
    monkeypatch.setenv("TIDEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(fsdp, "install", lambda model, *, provide, **rest: [provide(signature, "1x6", "python") for _ in range(2)])
    monkeypatch.setattr(fsdp, "tell", lambda made, notes: told.extend(notes))
    compiled = pipeline.compile
    monkeypatch.setattr(pipeline, "compile", lambda *given, target, **rest: compiled(*given, **rest, is_echoed=False))
    paths = tidec.install("a model")
    assert len(set(paths)) == 1 and paths[0].is_dir() and [note.code for note in told] == ["P015"]


def test_a_library_is_built_where_a_target_has_one(tmp_path, monkeypatch):
    (tmp_path / "g.json").write_text(GROUP, encoding="utf-8")
    asked = []
    monkeypatch.setattr(pipeline, "build_library", lambda folder, target: asked.append((folder.name, target)))
    for target in ("host", "python"):
        tidec.compile("3x2", tmp_path / "g.json", out=tmp_path / target, target=target, is_echoed=False)
    assert set(asked) == {("host", "host")}
    with pytest.raises(TidecError, match='there is no target "tpu"'):
        tidec.compile("3x2", tmp_path / "g.json", out=tmp_path / "b", target="tpu")


def test_only_making_a_bundle_needs_what_makes_one(tmp_path):
    """A machine that trains has a bundle and no prover."""
    (tmp_path / "g.json").write_text(GROUP, encoding="utf-8")
    tidec.compile("3x2", tmp_path / "g.json", out=tmp_path / "bundle", is_echoed=False)
    script = """if True:
        import sys
        sys.modules.update(z3=None, networkx=None, jinja2=None)
        import tidec
        tidec.install, tidec.uninstall, tidec.report
        assert tidec.recheck(sys.argv[1] + "/bundle").verdict == "proved"
        assert len(tidec.load(sys.argv[1] + "/bundle").plans) == 2
        try:
            tidec.compile("3x2", sys.argv[1] + "/g.json", out=sys.argv[1] + "/another")
        except tidec.TidecError as problem:
            print(problem)
    """
    done = subprocess.run((sys.executable, "-c", script, str(tmp_path)), capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "E001" in done.stdout and "tidec[compile]" in done.stdout


@pytest.mark.parametrize("seconds", [0, -1, 0.0001, float("nan"), float("inf"), 1e8, True, "30", None])
def test_a_deadline_that_is_no_time_to_wait_is_refused(seconds):
    """Before anything is looked at; one of a millisecond is fine, and the next thing that is wrong is told."""
    nn = pytest.importorskip("torch.nn")
    with pytest.raises(TidecError) as refused:
        tidec.install(nn.Linear(2, 2), deadline_s=seconds)
    (found,) = refused.value.diagnostics
    assert found.code == "P001" and f"deadline_s={seconds!r}" in found.sentence and "0.001 to 10000000" in found.help
    with pytest.raises(TidecError, match="F001"):
        tidec.install(nn.Linear(2, 2), deadline_s=0.001)


def test_every_public_name_is_there():
    for name in tidec.__all__:
        assert getattr(tidec, name) is not None
    with pytest.raises(AttributeError):
        tidec.nothing
