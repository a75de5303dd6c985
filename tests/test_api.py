"""The public names do from Python what the commands do."""
import json
import subprocess
import sys

import pytest

import tidec
from tidec.errors import TidecError

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
