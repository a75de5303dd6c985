"""Every group that keeps a stock collective, and why."""

MIXED = """\
{"groups": [
 {"name": "embed", "params": [{"name": "embed.weight", "shape": [64, 16], "dtype": "bf16", "shard_dim": 1}]},
 {"name": "block", "repeat": 3, "params": [{"name": "w", "shape": [64, 16], "dtype": "bf16"}]},
 {"name": "head", "params": [{"name": "head.weight", "shape": [64, 16], "dtype": "bf16", "requires_grad": false}]}
]}
"""


def test_why_not_reads(told, golden, group):
    golden("cli/why-not-none.txt", told("why-not", "--topo", "8x8", "--group", "examples/llama70b.json"))
    golden("cli/why-not-some.txt", told("why-not", "--topo", "8x8", "--group", group(MIXED)))


def test_why_not_has_an_entry_a_group_in_the_files_order(json_of, group):
    exit_code, content = json_of("why-not", "--topo", "8x8", "--group", group(MIXED))
    assert exit_code == 4 and [g["name"] for g in content["groups"]] == ["embed", "block", "head"]
    embed, block, head = content["groups"]
    assert embed["stock"]["parameter"] == "embed.weight" and embed["all_gather"]["stock"]["code"] == "P012" and "reduce_scatter" in embed
    assert "stock" not in block and "all_gather" not in head and "reduce_scatter" in head


def test_norms_of_another_type_have_a_remedy(told, golden, group):
    text = told("why-not", "--topo", "2x2", "--group", group(MIXED.replace('"bf16"}]', '"bf16"}, {"name": "norm", "shape": [16], "dtype": "fp32"}]')))
    golden("cli/why-not-types.txt", text)
    assert text.count("help: give the fp32 norms a group of their own (fully_shard them apart), or store all in one type") == 1 and text.endswith("exit 4\n")


def test_sums_in_bf16_have_a_remedy(told, group):
    """FSDP2's default: reduce_dtype is that of the parameters."""
    text = told("why-not", "--topo", "2x2", "--group", group(MIXED.replace('"repeat": 3', '"reduce_dtype": "bf16"')))
    assert "its reduce_dtype is bf16; tidec sums in fp32" in text and text.count("help: set reduce_dtype=torch.float32 in the MixedPrecisionPolicy") == 1
