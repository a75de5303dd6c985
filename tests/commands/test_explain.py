"""What plans cost, and what codes mean."""
import re

import pytest

from tidec.errors import CODES

SMALL = '{"params": [{"name": "w", "shape": [6, 4], "dtype": "bf16"}, {"name": "b", "shape": [5], "dtype": "bf16"}]}'
LARGE = '{"params": [{"name": "w", "shape": [1000000, 40000], "dtype": "bf16"}]}'
MIXED = """\
{"groups": [
 {"name": "embed", "params": [{"name": "embed.weight", "shape": [64, 16], "dtype": "bf16", "shard_dim": 1}]},
 {"name": "block", "repeat": 3, "params": [{"name": "w", "shape": [64, 16], "dtype": "bf16"}]},
 {"name": "head", "params": [{"name": "head.weight", "shape": [64, 16], "dtype": "bf16", "requires_grad": false}]}
]}
"""


def test_explain_reads(told, golden, group):
    golden("cli/explain-model.txt", told("explain", "--topo", "8x8", "--group", "examples/llama70b.json"))
    golden("cli/explain-stock.txt", told("explain", "--topo", "1x4", "--group", group(MIXED)))
    golden("cli/explain-nvls.txt", told("explain", "--topo", "2x2", "--group", group(SMALL), "--capability", "nvls"))
    golden("cli/explain-code.txt", told("explain", "V104"))


def test_explain_counts_what_one_can_count_by_hand(json_of, group):
    # 2x2: N = 4 ranks; w has R = 2 rows of 8 bytes, b has R = 2 rows of 2 bytes: S = 20, landing 80, of which 16 + 6 are padding.
    exit_code, content = json_of("explain", "--topo", "2x2", "--group", group(SMALL))
    (entry,) = content["groups"]
    assert exit_code == 0 and entry["name"] == "small" and entry["num_params"] == 2
    assert (entry["shard_bytes"], entry["landing_bytes"], entry["pad_bytes"], entry["pack_bytes"]) == (20, 80, 22, 4 * 4 * (8 + 2))
    assert entry["zero_row_ranks"] == 2 and entry["unaligned16"] == 0
    assert entry["all_gather"]["rounds"] == 1 and entry["reduce_scatter"]["waves"] == 1


def test_a_plan_that_compile_refuses_has_no_cost(told, golden, group):
    text = told("explain", "--topo", "9x8", "--group", group(SMALL), "--set", "W=6")
    golden("cli/explain-premise.txt", text)
    assert "error[P013 premise]" in text and text.endswith("exit 1\n")
    assert told("explain", "--topo", "8x8", "--group", group(SMALL), "--set", "W=6").endswith("exit 0\n")


def test_a_budget_refuses_the_models_that_compile_refuses(told, json_of):
    model = ("--topo", "8x8", "--group", "examples/llama70b.json")
    refused = [told(command, *model, "--budget", "3").partition("\n")[2] for command in ("explain", "compile")]
    assert refused[0] == refused[1] and "error[V401 over-budget]" in refused[0] and refused[0].endswith("exit 1\n")
    assert "the arena of" in json_of("explain", *model, "--budget", "5.4")[1]["error"]["sentence"] and json_of("explain", *model, "--budget", "5.5")[0] == 0
    assert told("explain", *model, "--budget", "lots").partition("\n")[2].startswith("stderr:\nerror[P001 usage]: a budget of")
    assert "go with --topo and --group" in told("explain", "W", "--budget", "3")


def test_passes_are_chosen_within_a_budget(json_of, group):
    free, stated = (json_of("explain", "--topo", "4x2", "--group", group(LARGE), *budget)[1]["knobs"][0]["n_part"]["why"] for budget in ((), ("--budget", "400")))
    assert free.endswith("(at most 21)") and stated.endswith("(at most 21 and the stated 400 GiB)")


def test_an_arena_that_compile_warns_of_is_warned_of_here(told, json_of, group):
    model = group(LARGE)
    assert "warning[V401 over-budget]" in told("explain", "--topo", "4x2", "--group", model)
    exit_code, content = json_of("explain", "--topo", "4x2", "--group", model)
    assert exit_code == 0 and ["V401" in text for text in content["warnings"]] == [True]
    assert json_of("explain", "--topo", "4x2", "--group", group(SMALL))[1]["warnings"] == []


def test_what_stock_allocates_stands_beside_the_arena(json_of, told, group):
    # As above: a landing is 80 bytes, and stock holds two of them and its gather buffer; its pack is 4 ranks * 10 elements * 4 bytes.
    (entry,) = json_of("explain", "--topo", "2x2", "--group", group(SMALL))[1]["groups"]
    assert (entry["all_gather"]["stock_bytes"], entry["reduce_scatter"]["stock_bytes"]) == (3 * 80, 160)
    small, large = (told("explain", "--topo", topology, "--group", "examples/gpt2-small.json") for topology in ("2x4", "8x8"))
    assert re.search(r'\nmemory: the reduce-scatter of 2 of 2 rows needs more than stock\'s pack, most in "embed\+pos\+norm\+head \(tied\)": 1\d\d MiB against 150 MiB\n', small)
    assert "memory:" not in large


def test_the_memory_of_a_model_stands_beside_stock_s(json_of, group, tmp_path):
    # As above, two groups of 80 bytes a landing, 58 of gradients and 160 of pack; S = 20, all stored in bf16. In backward stock holds at most one group's
    # parameters, the other's gather buffer and pack, and its own gradients; the first one's gradients and pack are less.
    model = group(SMALL.replace('{"params"', '{"groups": [{"name": "g", "repeat": 2, "params"').replace("]}", "]}]}").replace("]}]}]}", "]}]}"))
    exit_code, content = json_of("explain", "--topo", "2x2", "--group", model)
    stock, symmetric, in_place, slot_reuse = content["memory"]["systems"]
    assert exit_code == 0 and content["memory"]["order"] == "default" and content["memory"]["layer"] == "g"
    assert stock == {"system": "stock", "shards_bytes": 40, "unsharded_bytes": 80, "gradients_bytes": 58, "packed_bytes": 160, "arena_bytes": 0,
                     "peak_bytes": 338, "layer_bytes": 2 * 80 + 160}
    assert symmetric["peak_bytes"] == 40 + (80 + 160) + (80 + 58)
    arena = content["arena"]
    assert arena["bytes"] == in_place["arena_bytes"] and in_place["peak_bytes"] == 40 + 2 * 58 + arena["bytes"]
    assert slot_reuse["gradients_bytes"] == 58 and slot_reuse["unsharded_bytes"] == slot_reuse["packed_bytes"] == 0
    assert [(r["name"], r["bytes"], r["groups"]) for r in arena["regions"]][:3] == [("landing.0", 80, ["g[0]"]), ("landing.1", 80, ["g[1]"]), ("shard", 20, ["g[0]", "g[1]"])]
    assert content["knobs"][0]["n_stg"] == {"value": 2, "why": content["knobs"][0]["n_stg"]["why"], "set": False} and len(content["knobs"]) == 1
    assert all(r["offset"] % 512 == 0 for r in arena["regions"]) and arena["mode"] == "in_place"


def test_the_mode_is_that_of_the_arena_and_an_order_of_its_landings(json_of, told, group, tmp_path):
    model, order = group(SMALL), tmp_path / "order.json"
    order.write_text('{"events": [{"unshard": "small"}]}')
    content = json_of("explain", "--topo", "2x2", "--group", model, "--order", order)[1]
    assert content["memory"]["order"] == content["arena"]["order"] == str(order)
    assert [r["name"] for r in content["arena"]["regions"]] == ["landing.0", "shard", "gather_stage", "reduce_stage.0"]
    order.write_text('{"events": [{"unshard": "smal"}]}')
    assert 'error[P002 malformed]: event 0 names "smal", which the model has no group of' in told("explain", "--topo", "2x2", "--group", model, "--order", order)
    assert "P001" in told("explain", "V104", "--order", order)


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_has_a_page(code, json_of):
    exit_code, page = json_of("explain", code.lower())
    assert exit_code == 0 and page["schema"] == "tidec.explain/1" and page["code"] == code and page["name"] == CODES[code].name and len(page["page"]) > 30


ORDER = """{"events": [{"unshard": "small"}, {"reshard": "small"}, {"reduce": "small"}, {"unshard": "small"}, {"read": "small"}]}
"""


def test_an_order_that_one_mode_allows_is_explained_in_that_mode(json_of, told, group, tmp_path):
    # The group is gathered again while its gradients are read, which it may be where they do not lie in its landing.
    asked = ("explain", "--topo", "2x2", "--group", group(SMALL), "--order", tmp_path / "o.json")
    (tmp_path / "o.json").write_text(ORDER)
    exit_code, content = json_of(*asked)
    assert exit_code == 0 and [s["system"] for s in content["memory"]["systems"]] == ["stock", "stock_symmetric", "in_place"]
    assert any(note.startswith('slot_reuse: not with this order: group "small" is unsharded again before its gradients are read') for note in content["notes"])
    refused = told(*asked, "--mode", "slot_reuse")
    assert "P002 malformed" in refused and "help: record its read before, or use --mode in_place" in refused and refused.endswith("exit 2\n")


@pytest.mark.parametrize("what", ["V104", "W", "."])
@pytest.mark.parametrize("option", ["--mode", "--capability", "--order", "--set"])
def test_what_depends_on_no_mode_takes_none(told, what, option):
    assert "error[P001 usage]: explain takes a bundle, a code or a word" in told("explain", what, option, "slot_reuse")


def test_an_empty_mode_is_no_mode(told, group):
    for command in ("explain", "compile", "run"):
        assert 'there is no mode ""' in told(command, "--topo", "2x2", "--group", group(SMALL), "--mode", "")
