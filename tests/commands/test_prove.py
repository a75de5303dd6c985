"""Claims as a person and as a program read them, and proofs that are kept."""
import os
import re

from tidec.commands.prove import claims_table
from tidec.verify.obligation import Claim, Verdict


def test_a_refusal_reads(told, golden):
    text = told("prove", "--schedule", "tide_rs", "--lanes", "8", "--set", "W=3")
    # How many claims a code has is the prover's business; that one of V104 is refuted is not.
    text = re.sub(r"^(V\d{3} [a-z-]+) .*$", r"\1 ...", re.sub(r"\d+( proved, 1 refuted of )\d+", r"...\1...", text), flags=re.M)
    golden("cli/prove-refuted.txt", text)


def test_a_step_that_is_refused_reads(told, golden):
    text = told("prove", "--step", "ahead", "--mode", "slot_reuse", "--lanes", "2")
    text = re.sub(r"^(V\d{3} [a-z-]+) .*$", r"\1 ...", re.sub(r"\d+( proved, 1 refuted of )\d+", r"...\1...", text), flags=re.M)
    golden("cli/prove-step.txt", text)
    assert text.endswith("exit 1\n") and "error[V204" in text


def test_a_step_takes_of_the_settings_what_each_collective_has(json_of):
    code, content = json_of("prove", "--step", "behind", "--mode", "slot_reuse", "--lanes", "2", "--set", "cast=1", "--set", "k=1")
    assert (code, content["verdict"], content["step"], content["mode"]) == (0, "proved", "behind", "slot_reuse")
    assert {k: content["knobs"][k] for k in ("cast", "k", "n_out", "W")} == {"cast": True, "k": 1, "n_out": 2, "W": 2}
    assert json_of("prove", "--step", "behind", "--mode", "slot_reuse", "--lanes", "2", "--set", "cast=1", "--set", "k=1")[1]["from_store"]
    assert json_of("prove", "--step", "ahead", "--lanes", "2")[1]["knobs"]["n_out"] == "full"


def test_a_step_and_a_schedule_do_not_go_together(told, golden):
    golden("cli/usage-prove-step.txt", "\n".join((
        told("prove", "--step", "ahead", "--schedule", "tide_ag", "--lanes", "2"), told("prove", "--step", "between", "--lanes", "2"),
        told("prove", "--schedule", "tide_ag", "--mode", "in_place", "--lanes", "2"))))


def test_the_table_counts_claims_by_code_and_verdict():
    claims = [Claim("V201", "x", "every M >= 2", Verdict.PROVED, 0.25), Claim("V104", "y", "every M >= 2", Verdict.REFUTED, 0.5),
              Claim("V201", "z", "every M >= 2", Verdict.UNKNOWN, 1.0)]
    assert claims_table(tuple(claims)).splitlines() == [
        "code            claims  proved  refuted  unknown  vacuous  seconds",
        "V104 exclusive       1       .        1        .        .     0.50",
        "V201 race            2       1        .        1        .     1.25",
    ]


def test_a_refusal_has_its_integers_in_json(json_of):
    exit_code, content = json_of("prove", "--schedule", "tide_rs", "--lanes", "8", "--set", "W=3")
    assert exit_code == 1 and content["verdict"] == "refuted"
    (bad,) = [c for c in content["claims"] if c["verdict"] != "proved"]
    assert bad["code"] == "V104" and bad["example"]["M"] == 9
    assert all({"code", "scope", "verdict", "seconds"} <= set(c) for c in content["claims"])


def test_an_all_gather_with_one_landing_is_proved_alone_and_in_a_step(json_of, told):
    code, alone = json_of("prove", "--schedule", "tide_ag", "--lanes", "2", "--set", "landings=1")
    assert (code, alone["verdict"], alone["knobs"]) == (0, "proved", {"cast": False, "landings": 1, "multicast": False})
    code, step = json_of("prove", "--step", "ahead", "--lanes", "2", "--set", "landings=1")
    assert (code, step["verdict"], step["knobs"]["landings"]) == (0, "proved", 1)
    assert "landings" not in json_of("prove", "--schedule", "tide_ag", "--lanes", "2", "--set", "landings=2")[1]["knobs"]
    for given in ("0", "3", "one"):
        assert f'landings is "{given}", not one of 1..2' in told("prove", "--schedule", "tide_ag", "--lanes", "2", "--set", f"landings={given}")


def test_a_kept_proof_is_found_again_and_a_damaged_one_is_not_believed(json_of, told, tmp_path):
    ask = ("prove", "--schedule", "tide_ag", "--lanes", "2")
    first, again = json_of(*ask)[1], json_of(*ask)[1]
    assert first["verdict"] == again["verdict"] == "proved" and (first["from_store"], again["from_store"]) == (False, True)
    assert [(c["code"], c["what"]) for c in first["claims"]] == [(c["code"], c["what"]) for c in again["claims"]]
    for file in (tmp_path / "cache" / "proofs").iterdir():
        file.write_bytes(file.read_bytes().replace(b"V104", b"V105"))
    text = told(*ask)
    assert text.count("note[C004 damaged-entry]") == 2 and text.endswith("exit 0\n")
    assert json_of(*ask)[1]["from_store"]


def test_no_cache_leaves_no_folder(told, tmp_path):
    assert told("prove", "--schedule", "ring_ag", "--lanes", "1", "--no-cache").endswith("exit 0\n")
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_is_a_link_stops_with_5(told, golden, tmp_path):
    (tmp_path / "cache").symlink_to(tmp_path)
    golden("cli/cache-is-a-link.txt", told("prove", "--schedule", "ring_ag", "--lanes", "1"))


def test_a_cache_that_cannot_be_made_costs_a_note(told, golden, tmp_path):
    (tmp_path / "cache").write_text("a file")
    (tmp_path / "cache").unlink()
    (tmp_path / "file").write_text("")
    os.environ["TIDEC_CACHE_DIR"] = str(tmp_path / "file" / "cache")
    text = told("prove", "--schedule", "ring_ag", "--lanes", "1")
    assert text.count("note[E003 unwritable]") == 1 and text.endswith("exit 0\n")


def test_the_sweep_of_the_paper_is_counted(json_of, told):
    assert "\nW  node counts refused\n1                    0\n2                    0\n3                  127\n" in told("prove", "--paper-sweep")
    exit_code, content = json_of("prove", "--paper-sweep")
    assert exit_code == 0 and content["verdict"] == "proved" and content["disagreements"] == 0
    assert (content["accepted"], content["rejected"]) == (458_304, 65_472) and content["colliding"] == [0, 0, 127, 0, 256, 256, 384, 0]
