"""What `tidec compile` says, writes and ends with."""
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tidec.build.compile import EchoReport

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.usefixtures("kept_proofs")
SMALL = '{"params": [{"name": "w", "shape": [6, 4], "dtype": "bf16"}, {"name": "b", "shape": [5], "dtype": "bf16"}]}'
MIXED = """\
{"groups": [
 {"name": "embed", "params": [{"name": "embed.weight", "shape": [64, 16], "dtype": "bf16", "shard_dim": 1}]},
 {"name": "block", "repeat": 3, "params": [{"name": "w", "shape": [64, 16], "dtype": "bf16"}]},
 {"name": "block", "repeat": 2, "params": [{"name": "w", "shape": [64, 16], "dtype": "bf16"}]},
 {"name": "head", "params": [{"name": "head.weight", "shape": [64, 16], "dtype": "bf16", "requires_grad": false}]}
]}
"""


def stable(text):
    """Without what differs between runs or changes with the prover: seconds, what the proof store knew, digests; and how many claims the prover makes."""
    text = re.sub(r"; (all|\d+) known from the proof store", "", text)
    text = re.sub(r"\(\d+ claims\)", "(... claims)", re.sub(r"\b\d{3}(?=  proved)", "...", text))
    text = re.sub(r"0\.00 s \([^)]*\)", "0.00 s (...)", text)
    return re.sub(r"\b[0-9a-f]{64}\b", "<digest>", re.sub(r"\b[0-9a-f]{12}\b", "<digest12>  ", text))


USAGE = {
    "no-such-mode": (2, ["--mode", "sideways"]),
    "no-such-target": (2, ["--target", "tpu"]),
    "no-place": (2, ["--no-cache"]),
    "budget-no-number": (2, ["--budget", "lots"]),
    "budget-too-small": (1, ["--budget", "3"]),
    "n-out-too-small": (2, ["--set", "n_out=2", "--set", "k=4"]),
}


@pytest.mark.parametrize("name", USAGE)
def test_what_cannot_be_done_says_why(name, told, golden):
    code, options = USAGE[name]
    text = told("compile", "--topo", "8x8", "--group", "examples/llama70b.json", *options)
    golden(f"cli/compile-{name}.txt", text)
    assert text.endswith(f"exit {code}\n") and "  help: " in text


def test_a_compile_reads(told, golden, group):
    text = told("compile", "--topo", "8x8", "--group", "examples/llama70b.json", "--no-echo")
    golden("cli/compile.txt", stable(text))
    golden("cli/compile-stock.txt", stable(told("compile", "--topo", "4x2", "--group", group(MIXED), "--no-echo")))


def test_a_compile_with_gradients_in_landings_reads(told, golden, group):
    """At 8 nodes and k = 2 two rounds are fewer than all blocks: reads go on in the network phase, and the next all-gather is issued behind it."""
    golden("cli/compile-slot-reuse.txt", stable(told("compile", "--topo", "8x2", "--group", group(MIXED), "--no-echo", "--mode", "slot_reuse")))


def test_the_first_line_has_the_knobs_of_every_reduce_scatter_and_of_no_other_group(told, group, tmp_path):
    """A large group, whose block of 16 MiB is worth four chunks, and a small one; beside them one that is stock. Bytes that were set are told as chunks."""
    model = group(MIXED.replace("[64, 16]", "[2097152, 64]", 2))

    def first(*options):
        return told("compile", "--topo", "8x2", "--group", model, "--no-echo", "--stock-ok", "-o", tmp_path / "b", "--force", *options).splitlines()[1]

    head = "small on 8x2 (16 ranks), p2p, gradients in place, W=2 k=2 n_stg=2 n_part=1 n_out=full "
    assert first() == head + "chunks=4/1"
    assert first("--set", f"chunk_bytes={8 * 2**20}") == head + "chunks=2/1"
    assert first("--set", "chunks=4", "--set", "stripes=2") == head + "chunks=4 stripes=2"


def test_a_model_without_gradients_has_no_knobs_to_show(told, group):
    text = told("compile", "--topo", "2x2", "--group", group(SMALL.replace('"bf16"', '"bf16", "requires_grad": false')), "--no-echo", "--stock-ok")
    assert text.splitlines()[1] == "small on 2x2 (4 ranks), p2p, gradients in place"


def test_a_mode_is_kept_in_the_bundle_and_checked_again(json_of, group, tmp_path):
    options = ("--topo", "8x2", "--group", group(SMALL), "--no-echo")
    _, reused = json_of("compile", *options, "--mode", "slot_reuse", "-o", tmp_path / "reused")
    _, in_place = json_of("compile", *options, "-o", tmp_path / "in_place")
    (behind,), (ahead,) = reused["steps"], in_place["steps"]
    assert (behind["place"], ahead["place"], behind["verdict"], ahead["verdict"]) == ("behind", "ahead", "proved", "proved")
    assert behind["claims"]["proved"] > 50 and behind["claims"]["refuted"] == 0 and behind["all_gather"] == ahead["all_gather"]
    assert json.loads((tmp_path / "reused" / "ask.json").read_text())["mode"] == "slot_reuse"
    arenas = [content["groups"][0]["reduce_scatter"]["arena_bytes"] for content in (reused, in_place)]
    assert arenas[0] < arenas[1]
    code, content = json_of("verify", tmp_path / "reused")
    assert (code, content["verdict"]) == (0, "proved")


def test_the_last_line_is_where_the_bundle_is(told, group, tmp_path):
    lines = told("compile", "--topo", "2x2", "--group", group(SMALL), "--no-echo").splitlines()
    assert re.fullmatch(r"<tmp>/cache/[0-9a-f]{64}", lines[-2]) and lines[-1] == "exit 0"
    digest = lines[-2].split("/")[-1]
    assert (tmp_path / "cache" / digest / "manifest.json").is_file()


def test_the_json_has_an_entry_a_group_in_the_files_order(json_of, group):
    code, content = json_of("compile", "--topo", "4x2", "--group", group(MIXED), "--no-echo")
    assert code == content["exit"] == 4 and content["schema"] == "tidec.compile/1"
    assert [(g["name"], g["repeat"]) for g in content["groups"]] == [("embed", 1), ("block", 3), ("block", 2), ("head", 1)]
    embed, first, second, head = content["groups"]
    assert embed["all_gather"]["stock"]["code"] == embed["reduce_scatter"]["stock"]["code"] == "P012"
    assert first["all_gather"] == second["all_gather"] and first["reduce_scatter"] == second["reduce_scatter"]
    assert first["all_gather"]["verdict"] == "proved" and len(first["all_gather"]["plan_digest"]) == len(first["all_gather"]["program_digest"]) == 64
    assert first["all_gather"]["claims"]["proved"] > 100 and {"refuted", "unknown", "vacuous"} < set(first["all_gather"]["claims"])
    assert head["all_gather"]["verdict"] == "proved" and "nothing to reduce" in head["reduce_scatter"]["stock"]["reason"]
    assert content["echo"] == {"checked": False} and content["seconds"] > 0 and content["out"].endswith(content["bundle_digest"])


def test_stock_ok_makes_it_0(json_of, group):
    assert json_of("compile", "--topo", "4x2", "--group", group(MIXED), "--no-echo", "--stock-ok")[0] == 0


def test_a_model_that_is_all_stock_has_a_bundle_that_says_so(told, json_of, group, tmp_path):
    text = told("compile", "--topo", "2x2", "--group", group(SMALL.replace('"bf16"}]', '"bf16", "shard_dim": 0}]').replace("[6, 4]", "[0, 4]").replace("[5]", "[0]")), "-o", tmp_path / "b")
    assert text.endswith("exit 4\n") and "nothing to move" in text
    assert "\nnothing is planned: " in text and "0 plans" not in text and "echo" not in text and "proved for" not in text
    assert json.loads((tmp_path / "b" / "manifest.json").read_text())["plans"] == []


@pytest.mark.skipif(not shutil.which("g++"), reason="the echo needs g++")
def test_the_echo_is_compared_on_every_rank_of_a_small_plan(json_of, told, group, tmp_path):
    code, content = json_of("compile", "--topo", "3x2", "--group", group(SMALL), "-o", tmp_path / "b")
    assert code == 0 and content["echo"]["checked"] and content["echo"]["ranks"] == 6 and content["echo"]["steps"] > 100
    assert json.loads((tmp_path / "b" / "manifest.json").read_text())["echo"]["digest"] == content["echo"]["digest"]


def test_what_the_echo_covered_is_told(told, group, monkeypatch):
    for topology, ranks, want in (("12x2", 24, "on all 24 ranks"), ("12x2", 10, "on 10 of 24 ranks"), ("1x1", 1, "on 1 rank")):
        monkeypatch.setattr("tidec.pipeline.check_echo", lambda sources, plans, ranks=ranks: EchoReport(ranks, 123, "0" * 64))
        assert f"\nthe compiled echo equals the plans: 123 steps {want}\n" in told("compile", "--topo", topology, "--group", group(SMALL))


def test_a_missing_compiler_or_template_engine_says_how_to_get_it(told, golden, group, monkeypatch):
    ask = ("compile", "--topo", "2x2", "--group", group(SMALL))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    golden("cli/compile-no-compiler.txt", told(*ask))
    assert told(*ask, "--no-echo").endswith("exit 0\n")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    golden("cli/compile-no-jinja2.txt", told(*ask, "--no-echo"))


def test_a_premise_that_fails_is_refuted_with_its_own_node_count(told, golden, group):
    text = told("compile", "--topo", "9x8", "--group", group(SMALL), "--set", "W=3", "--no-echo")
    golden("cli/compile-premise.txt", text)
    assert text.endswith("exit 1\n") and "9 nodes, 8 lanes, W = 3" in text
    allowed = told("compile", "--topo", "8x8", "--group", group(SMALL), "--set", "W=3", "--no-echo")
    assert allowed.endswith("exit 0\n") and "2 plans of 2 programs, each proved for every node count with (M - 1) % 3 <= (M - 1) % 8 (" in allowed


def test_a_large_arena_and_much_padding_are_warned_of(told, golden, group):
    huge = '{"params": [{"name": "w", "shape": [3, 20000000000], "dtype": "bf16"}]}'
    golden("cli/compile-warnings.txt", stable(told("compile", "--topo", "4x2", "--group", group(huge), "--no-echo")))


def test_an_output_folder_is_only_replaced_when_asked(told, golden, group, tmp_path, monkeypatch):
    ask = ("compile", "--topo", "2x2", "--group", group(SMALL), "--no-echo")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    golden("cli/compile-out-not-ours.txt", told(*ask, "-o", tmp_path / "mine", "--force"))
    assert told(*ask, "-o", tmp_path / "a b" / "\u00fc").endswith("<tmp>/a b/\u00fc\nexit 0\n")
    golden("cli/compile-out-exists.txt", told(*ask, "-o", tmp_path / "a b" / "\u00fc"))
    assert told(*ask, "-o", tmp_path / "a b" / "\u00fc", "--force").endswith("exit 0\n")
    monkeypatch.chdir(tmp_path)
    assert told(*ask, "-o", "relative/../here").endswith("<tmp>/here\nexit 0\n") and (tmp_path / "here" / "manifest.json").is_file()
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "x"


def test_no_cache_and_a_folder_leave_no_cache(told, group, tmp_path):
    shutil.rmtree(tmp_path / "cache")
    assert told("compile", "--topo", "1x2", "--group", group(SMALL), "--no-echo", "--no-cache", "-o", tmp_path / "b").endswith("exit 0\n")
    assert not (tmp_path / "cache").exists()


def test_a_kept_bundle_that_was_changed_stops_the_compile_and_is_replaced_only_by_force(told, golden, group, tmp_path):
    ask = ("compile", "--topo", "1x2", "--group", group(SMALL), "--no-echo")
    digest = told(*ask).splitlines()[-2].split("/")[-1]
    file = tmp_path / "cache" / digest / "ask.json"
    whole = file.read_bytes()
    file.write_bytes(whole + b" ")
    golden("cli/compile-kept-changed.txt", stable(told(*ask)))
    assert file.read_bytes() == whole + b" "
    assert told(*ask, "--force").endswith("exit 0\n") and file.read_bytes() == whole
    assert told(*ask).endswith("exit 0\n")


def test_stacked_experts_are_refused_on_a_budget_with_both_numbers(told, golden):
    text = told("compile", "--topo", "8x8", "--group", "examples/mixtral-8x7b.json", "--budget", "40")
    golden("cli/compile-budget-mixtral.txt", text)
    assert "GiB\n  reason: the budget is 40.0 GiB" in text and "stock FSDP2 takes" in text and text.endswith("exit 1\n")


def test_the_json_has_the_arena_of_the_model_for_an_order_of_use(json_of, told, group, tmp_path):
    order, model = tmp_path / "order.json", group(MIXED.replace('"name": "block", "repeat": 2', '"name": "more", "repeat": 2'))
    names = [("block", 0), ("block", 1), ("block", 2), ("more", 0), ("more", 1), ("head", 0), ("embed", 0)]
    order.write_text(json.dumps({"events": [{"unshard": name, **({"copy": copy} if name in ("block", "more") else {})} for name, copy in names]}))
    ask = ("compile", "--topo", "4x2", "--group", model, "--no-echo", "--no-cache", "--stock-ok")
    usual, all_at_once = (json_of(*ask, "-o", tmp_path / out, *more)[1]["arena"] for out, more in (("a", ()), ("b", ("--order", order))))
    assert (usual["order"], all_at_once["order"], usual["mode"]) == ("default", str(order), "in_place")
    landings = [[r["groups"] for r in a["regions"] if r["use"] == "landing"] for a in (usual, all_at_once)]
    assert landings[1] == [["block[0]"], ["block[1]"], ["block[2]"], ["more[0]"], ["more[1]"], ["head"]] and len(landings[0]) == 2
    assert usual["bytes"] == max(r["offset"] + -(-r["bytes"] // 512) * 512 for r in usual["regions"]) < all_at_once["bytes"]
    assert "P003 unknown-key" in told(*ask, "-o", tmp_path / "c", "--order", tmp_path / "a" / "ask.json")


def test_dump_writes_what_each_step_made(told, group, tmp_path):
    told("compile", "--topo", "2x2", "--group", group(SMALL), "--no-echo", "--dump", tmp_path / "steps")
    names = ["1-ask.json", "2-knobs.json", "3-program.txt", "4-plan.json", "5-arena.json", "6-report.json", "7-proved.json", "8-step.json", "9-source.txt",
             "10-bundle.json"]
    assert sorted(p.name for p in (tmp_path / "steps").iterdir()) == sorted(names)
    assert json.loads((tmp_path / "steps" / "2-knobs.json").read_text())[0]["knobs"]["W"] == 2
    assert "for c in " in (tmp_path / "steps" / "3-program.txt").read_text()
    assert told("compile", "--topo", "2x2", "--group", group(SMALL), "--no-echo", "--dump", tmp_path / "steps").endswith("exit 2\n")


def test_explain_reads_a_bundle_as_it_reads_what_was_asked(told, json_of, group, tmp_path):
    assert json_of("compile", "--topo", "4x2", "--group", group(MIXED), "--no-echo", "-o", tmp_path / "b")[0] == 4
    asked, read = json_of("explain", "--topo", "4x2", "--group", group(MIXED))[1], json_of("explain", tmp_path / "b")[1]
    assert asked["groups"][1:] == read["groups"][1:] and read["groups"][0]["all_gather"] == asked["groups"][0]["all_gather"]
    assert told("explain", tmp_path).endswith("exit 2\n")
    (tmp_path / "b" / "ask.json").write_text("{}")
    assert told("explain", tmp_path / "b").endswith("exit 5\n")


@pytest.mark.slow
@pytest.mark.parametrize("topology", ["1x1", "1x8", "2x8", "3x8", "5x8", "8x8", "16x8", "64x8"])
def test_every_model_of_the_examples_is_proved(topology, json_of):
    for model in sorted((ROOT / "examples").glob("*.json")):
        code, content = json_of("compile", "--topo", topology, "--group", model, "--no-echo")
        assert code == 0, model.name
        assert {g[c]["verdict"] for g in content["groups"] for c in ("all_gather", "reduce_scatter")} == {"proved"}, model.name


@pytest.mark.slow
def test_the_main_job_covers_every_rank(json_of):
    code, content = json_of("compile", "--topo", "8x8", "--group", "examples/llama70b.json")
    assert code == 0 and content["echo"]["ranks"] == 64 and content["plans"] == 6 and content["proofs"] == 2
