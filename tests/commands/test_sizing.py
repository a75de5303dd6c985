"""What decided knobs is told once for groups that are sized alike."""
from tidec.commands.sizing import choice_fields, choices_text, rates_text
from tidec.inputs.knobs import Knobs, read_settings
from tidec.inputs.topology import Topology
from tidec.size.solver import Choice, solve


def sized(elems: int, *settings: str) -> Choice:
    return solve(Topology(8, 8), packed_elems=elems, grad_item_bytes=2, settings=read_settings(settings, 8))


def test_a_table_says_which_term_decided(golden):
    large, larger, small = sized(2**23), sized(2**23 + 64), sized(100)
    golden("cli/sizing.txt", choices_text(("embed", "block", "norm"), (large, larger, small)) + "\n")
    one_node = [solve(Topology(1, 2), packed_elems=elems, grad_item_bytes=2, budget_bytes=budget) for elems, budget in ((2**18, None), (2**24, None), (2**26, None), (2**24, 40 * 2**20))]
    golden("cli/sizing-one-node.txt", choices_text(("norm", "block", "embed", "short"), one_node) + "\n")
    golden("cli/rates.txt", "".join(f"{t}\n{rates_text(t)}\n" for t in (Topology(8, 8), Topology(1, 2), Topology(2, 2, nic_gbps=24.5, origin="our machine, measured on a Monday"))))


def test_groups_that_are_sized_alike_are_told_once():
    names = [f"g{i}" for i in range(6)]
    text = choices_text(names, [sized(100)] * 6)
    assert text.startswith("knobs of g0, g1, g2, g3 and 2 more; why, of g0\n") and text.count("knobs of") == 1
    assert choices_text(names, [sized(100)] * 5 + [sized(2**23)]).count("knobs of") == 2


def test_knobs_that_nobody_decided_are_not_told(told, json_of, group):
    assert choices_text(("g",), (Choice(Knobs(8, 4), ()),)) == ""
    # A group without a reduce-scatter has no staging to have decided anything.
    row = '"shape": [64, 4], "dtype": "bf16"'
    stock, planned = f'{{"name": "s", "params": [{{"name": "w", {row}, "shard_dim": 1}}]}}', f'{{"name": "t", "params": [{{"name": "w", {row}}}]}}'
    model, both = group(f'{{"groups": [{stock}]}}', "stock.json"), group(f'{{"groups": [{stock}, {planned}]}}')
    text = told("explain", "--topo", "2x2", "--group", model)
    assert "knobs of" not in text and "rates:" not in text
    assert "\nknobs of t\n" in told("explain", "--topo", "2x2", "--group", both)
    assert json_of("explain", "--topo", "2x2", "--group", both)[1]["knobs"][0] == {}


def test_no_line_is_wider_than_120_columns_whatever_the_rates():
    extremes = (1e-6, 1, 1e12)
    for topology in (Topology(m, l, nic_gbps=nic, sum_gbps_per_cta=rate, sms=1, origin="our machine, measured on a Monday " * 9)
                     for m, l in ((1, 1), (1, 8), (3, 72)) for nic in extremes for rate in extremes):
        chosen = solve(topology, packed_elems=2**20, grad_item_bytes=2)
        lines = [*choices_text(["g"], [chosen]).splitlines(), *rates_text(topology).splitlines()]
        assert max(map(len, lines)) <= 120, topology
        assert " ".join(line.strip() for line in lines).count("(eq. 13)") == 1


def test_fields_have_what_was_set_and_why_the_rest():
    fields = choice_fields(sized(100, "W=4"))
    assert fields["W"] == {"value": 4, "why": "set", "set": True}
    assert fields["n_out"] == {"value": "full", "why": "gradients in place are read without waiting for the rail", "set": False}
    assert set(fields) == {"W", "k", "n_stg", "stripes", "n_part", "n_out", "chunks", "ctas_sum", "ctas_land"}


def test_compile_and_explain_say_what_decided_every_group(json_of, group, kept_proofs):
    model = group('{"groups": [{"name": "a", "params": [{"name": "w", "shape": [64, 4], "dtype": "bf16"}]}, {"name": "b", "params": [{"name": "w", "shape": [8], "dtype": "fp32"}]}]}')
    asked = ("--topo", "1x2", "--group", model, "--set", "ctas_sum=3")
    compiled, explained = json_of("compile", *asked, "--no-echo")[1]["knobs"], json_of("explain", *asked)[1]["knobs"]
    assert compiled == explained and len(compiled) == 2
    assert all(one["ctas_sum"] == {"value": 3, "why": "set", "set": True} and one["k"]["value"] == 2 for one in compiled)


def test_what_rates_choose_changes_no_bit(json_of, group, kept_proofs, tmp_path):
    model = group('{"groups": [{"name": "a", "params": [{"name": "w", "shape": [61, 4], "dtype": "bf16"}, {"name": "b", "shape": [7], "dtype": "bf16"}]}]}')
    slow = tmp_path / "slow.json"
    slow.write_text('{"nodes": 3, "lanes": 2, "nic_gbps": 0.000001, "wait_us": 0, "origin": "a rail on which everything but the wire is nothing"}')
    (fast_knobs,), (slow_knobs,) = (json_of("explain", "--topo", topo, "--group", model)[1]["knobs"] for topo in ("3x2", slow))
    assert (fast_knobs["chunks"]["value"], slow_knobs["chunks"]["value"]) == (1, 4)
    found = [json_of("run", "--topo", topo, "--group", model, "--target", "python")[1]["groups"][0] for topo in ("3x2", slow)]
    assert found[0] == found[1] and found[0]["reduce_scatter"]["bitwise_equal"] is True
