"""What plans cost, and what codes mean."""
import pytest

from tidec.errors import CODES

SMALL = '{"params": [{"name": "w", "shape": [6, 4], "dtype": "bf16"}, {"name": "b", "shape": [5], "dtype": "bf16"}]}'
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


def test_what_stock_allocates_stands_beside_the_arena(json_of, told, group):
    # As above: a landing is 80 bytes, and stock holds two of them and its gather buffer; its pack is 4 ranks * 10 elements * 4 bytes.
    (entry,) = json_of("explain", "--topo", "2x2", "--group", group(SMALL))[1]["groups"]
    assert (entry["all_gather"]["stock_bytes"], entry["reduce_scatter"]["stock_bytes"]) == (3 * 80, 160)
    small, large = (told("explain", "--topo", topology, "--group", "examples/gpt2-small.json") for topology in ("2x4", "8x8"))
    assert "memory: the reduce-scatter of 2 of 2 rows needs more than stock's pack, most in \"embed+pos+norm+head (tied)\": 301 MiB against 150 MiB\n" in small
    assert "memory:" not in large


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_has_a_page(code, json_of):
    exit_code, page = json_of("explain", code.lower())
    assert exit_code == 0 and page["schema"] == "tidec.explain/1" and page["code"] == code and page["name"] == CODES[code].name and len(page["page"]) > 30
