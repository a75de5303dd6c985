"""The steps in order: what is proved once, what is refused before anything is written, and the same bytes every time."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tidec
from tidec import pipeline
from tidec.errors import Diagnostic, TidecError
from tidec.inputs.ask import Collective, Mode
from tidec.inputs.knobs import default_knobs, parse_knobs
from tidec.inputs.order import Event, Moment, Order
from tidec.inputs.signature import Signature, read_groups
from tidec.inputs.topology import Topology
from tidec.plan.model_arena import Use
from tidec.verify.obligation import Claim, Verdict
from tidec.verify.step import Place

ROOT = Path(__file__).resolve().parent.parent
MODEL = """\
{"groups": [
 {"name": "first", "params": [{"name": "w", "shape": [6, 4], "dtype": "bf16"}, {"name": "b", "shape": [5], "dtype": "bf16"}]},
 {"name": "again", "repeat": 2, "params": [{"name": "w", "shape": [6, 4], "dtype": "bf16"}, {"name": "b", "shape": [5], "dtype": "bf16"}]},
 {"name": "other", "params": [{"name": "v", "shape": [9], "dtype": "fp32"}]}
]}
"""
TOPOLOGY = Topology(2, 2)
SIGNATURE = read_groups(MODEL, file="model.json")


class Kept(dict):
    """A proof store in memory."""

    def get(self, key: str) -> str:
        return super().get(key, "")

    def put(self, key: str, value: str) -> None:
        self[key] = value


KEPT = Kept()


def compiled(out: Path, *, signature: Signature | None = None, **options):
    return pipeline.compile(TOPOLOGY, SIGNATURE if signature is None else signature, **({"knobs": default_knobs(2), "out": out, "store": KEPT, "is_echoed": False} | options))


def test_equal_groups_are_planned_once_and_programs_are_proved_once(tmp_path):
    made = compiled(tmp_path / "b")
    assert [g.name for g in made.groups] == ["first", "again", "other"] and len(made.outcomes) == 3
    (first_ag, first_rs), (again_ag, again_rs), (other_ag, other_rs) = made.outcomes
    assert first_ag.plan is again_ag.plan and first_rs.plan is again_rs.plan and first_ag.plan.groups == ("first", "again")
    assert other_ag.plan is not first_ag.plan and len(made.plans) == 4
    assert len(made.reports) == 2 and first_ag.report is other_ag.report and first_ag.report is not first_rs.report
    assert [o.plan.collective for o in made.outcomes[0]] == list(Collective)


@pytest.mark.parametrize("one, other, planned", [
    ({"shape": [32, 16]}, {"shape": [32, 4, 4]}, "aabb"), ({"shape": [32]}, {"shape": [32, 1]}, "aabb"),
    ({"shape": [32, 16]}, {"shape": [32, 16], "reduce_dtype": "bf16"}, "aab"),
])
def test_groups_that_move_the_same_and_ask_otherwise_have_plans_of_their_own(one, other, planned, tmp_path):
    groups = [{"name": name, **({"reduce_dtype": "bf16"} if "reduce_dtype" in of else {}), "params": [{"name": "w", "shape": of["shape"], "dtype": "bf16"}]}
              for name, of in (("a", one), ("b", other))]
    made = compiled(tmp_path / "b", signature=read_groups(json.dumps({"groups": groups}), file="model.json"))
    assert [o.plan.groups for row in made.outcomes for o in row if isinstance(o, pipeline.Planned)] == [(name,) for name in planned]
    assert tidec.recheck(tmp_path / "b").verdict == "proved"


def test_groups_of_one_name_have_the_plans_of_their_own_shapes(tmp_path):
    params = [[{"name": "w", "shape": shape, "dtype": "bf16"}] for shape in ([32, 16], [32, 4, 4], [8, 4], [32, 16])]
    made = compiled(tmp_path / "b", signature=read_groups(json.dumps({"groups": [{"name": "a", "params": p} for p in params]}), file="model.json"))
    assert len({id(row[0].plan) for row in made.outcomes}) == 3 and made.outcomes[0][1].plan is made.outcomes[3][1].plan
    assert tidec.recheck(tmp_path / "b").verdict == "proved"


def test_the_steps_are_told_in_their_order(tmp_path):
    names = []
    compiled(tmp_path / "b", watch=lambda name, value: names.append(name))
    assert names == ["ask", "knobs", "program", "plan", "arena", "report", "proved", "step", "source", "bundle"]


def test_a_store_that_knows_everything_leaves_nothing_to_prove(tmp_path, monkeypatch):
    compiled(tmp_path / "a")
    again = compiled(tmp_path / "b")
    assert all(r.from_store for r in again.reports)


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.PROVED])
def test_a_claim_that_is_not_proved_stops_before_anything_is_written(verdict, tmp_path, monkeypatch):
    code = {Verdict.REFUTED: "V104", Verdict.UNKNOWN: "V901", Verdict.VACUOUS: "V902"}[verdict]
    bad = Claim("V104", "inbox: two writers", "every M >= 2", verdict, 0.0, diagnostic=Diagnostic(code, "two writers meet"))
    real = pipeline.prove

    def prove(program, **options):
        report = real(program, **options)
        return replace(report, claims=(*report.claims, bad)) if program.name == "tide_rs" else report

    monkeypatch.setattr(pipeline, "prove", prove)
    with pytest.raises(TidecError) as caught:
        compiled(tmp_path / "b")
    assert [d.code for d in caught.value.diagnostics] == [code] and not (tmp_path / "b").exists()


def test_an_echo_that_differs_stops_before_anything_is_written(tmp_path, monkeypatch):
    def check_echo(sources, plans):
        raise TidecError(Diagnostic("V501", "line 3 differs"))

    monkeypatch.setattr(pipeline, "check_echo", check_echo)
    with pytest.raises(TidecError):
        compiled(tmp_path / "b", is_echoed=True)
    assert not (tmp_path / "b").exists()


def test_a_budget_refuses_the_arena_of_the_model_and_its_absence_does_not(tmp_path):
    arena = compiled(tmp_path / "a").arena
    assert {r.use for r in arena.regions} == set(Use) and arena.bytes > max(r.bytes for r in arena.regions)
    assert compiled(tmp_path / "b", budget_bytes=arena.bytes).warnings == ()
    with pytest.raises(TidecError) as caught:
        compiled(tmp_path / "c", budget_bytes=arena.bytes - 1)
    over = caught.value.diagnostics[0]
    assert over.code == "V401" and not (tmp_path / "c").exists()
    assert over.sentence.endswith(f" needs {arena.bytes:,} bytes") and over.reason.startswith(f"the budget is {arena.bytes - 1:,} bytes; ")


def test_an_order_of_use_places_the_landings(tmp_path):
    # All four groups unsharded at once: a landing each. By default two are enough.
    usual = compiled(tmp_path / "a").arena
    every = tuple(Event(moment, g) for moment in (Moment.UNSHARD, Moment.RESHARD) for g in range(4))
    order = Order(usual.order.groups, every, 1, "all.json")
    made = compiled(tmp_path / "b", order=order).arena
    assert [sum(r.use is Use.LANDING for r in a.regions) for a in (usual, made)] == [2, 4] and made.order is order


def test_an_arena_with_a_claim_that_does_not_hold_is_not_used(tmp_path, monkeypatch):
    real = pipeline.lay_model_arena

    def lay(order, needs, *, mode):
        arena = real(order, needs, mode=mode)
        return replace(arena, regions=tuple(replace(r, offset=0) for r in arena.regions))

    monkeypatch.setattr(pipeline, "lay_model_arena", lay)
    with pytest.raises(TidecError) as caught:
        compiled(tmp_path / "b")
    assert {d.code for d in caught.value.diagnostics} == {"V402"} and not (tmp_path / "b").exists()


def test_a_step_that_is_refused_stops_the_compile(tmp_path, monkeypatch):
    """As if the next all-gather went ahead of reads that a partial outbox puts off."""
    monkeypatch.setattr(pipeline, "place_of", lambda mode, n_out: Place.AHEAD)
    with pytest.raises(TidecError) as caught:
        compiled(tmp_path / "b", mode=Mode.SLOT_REUSE, knobs=parse_knobs(("n_out=1", "k=1"), 2))
    assert [d.code for d in caught.value.diagnostics] == ["V204"] and not (tmp_path / "b").exists()


def test_the_public_names_are_those_of_their_rooms():
    assert tidec.Topology is Topology and "compile" in dir(tidec)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        tidec.nothing


def started(seed: int, cache: Path, out: Path, model: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(seed), "TIDEC_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "tidec", "compile", "--topo", "3x2", "--group", str(model), "--no-echo", "-o", str(out)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def written(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_processes_with_different_hash_seeds_write_the_same_bytes(tmp_path):
    (tmp_path / "model.json").write_text(MODEL)

    def run(seed: int, cache: str) -> subprocess.Popen[bytes]:
        return started(seed, tmp_path / cache, tmp_path / f"b{seed}", tmp_path / "model.json")

    # Two prove everything themselves, six find the proofs of the first.
    assert [p.wait(120) for p in (run(0, "cache"), run(1, "another"))] == [0, 0]
    assert [p.wait(120) for p in [run(seed, "cache") for seed in range(2, 8)]] == [0] * 6
    first = written(tmp_path / "b0")
    assert len(first) > 10
    for seed in range(1, 8):
        assert written(tmp_path / f"b{seed}") == first, f"seed {seed}"


@pytest.mark.slow
def test_processes_that_prove_everything_write_the_same_bytes(tmp_path):
    for seed in range(8):
        assert started(seed, tmp_path / f"cache{seed}", tmp_path / f"b{seed}", ROOT / "examples" / "llama70b.json").wait(120) == 0
        assert written(tmp_path / f"b{seed}") == written(tmp_path / "b0"), f"seed {seed}"
