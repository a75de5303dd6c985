"""The script of all measurements: its parts, their time, and that it runs from end to end where there is no GPU."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "measure" / "pair.sh"


def test_every_part_has_a_function_for_each_target_and_all_take_at_most_22_minutes():
    text = SCRIPT.read_text(encoding="utf-8")
    parts = dict(re.findall(r'^  "(\w+) (\d+)"', text, re.MULTILINE))
    assert list(parts)[:5] == ["ready", "bench", "staged", "interference", "sm_time"] and sum(map(int, parts.values())) <= 22 * 60 and f"({sum(map(int, parts.values()))} seconds)" in text
    assert {part: len(re.findall(rf"^ *{part}\(\)", text, re.MULTILINE)) for part in parts} == {part: 1 if part == "ready" else 2 for part in parts}
    assert subprocess.run(["bash", "-n", str(SCRIPT)], check=False).returncode == 0


def test_what_it_runs_where_the_gpus_are_loads_where_there_is_no_prover():
    pytest.importorskip("torch")
    files = re.findall(r'^files="(.+)"$', SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)[0].split()
    hidden = '''if True:
        import sys
        sys.modules.update({name: None for name in ("z3", "cvc5", "matplotlib")})
        sys.path[:0] = ["examples/measure", "examples"]
        import pytest
        import interference, kernels, sm_probe, sm_time, steps, train_fsdp2
        from tidec.commands import bench
        sys.exit(pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "-m", "gpu or gpus2", *sys.argv[1:]]))
    '''
    usual = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])}
    done = subprocess.run([sys.executable, "-c", hidden, *files], env=usual, cwd=SCRIPT.parents[2], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert all(f"{file}::" in done.stdout for file in files), done.stdout


@pytest.mark.slow
def test_it_runs_from_end_to_end_on_processes_of_this_machine(tmp_path):
    usual = {name: value for name, value in os.environ.items() if not name.startswith("TIDEC_")}
    usual |= {"PYTHON": sys.executable, "PAIR_FOLDER": str(tmp_path / "bundles"), "TIDEC_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(["bash", str(SCRIPT), "host", str(tmp_path / "out")], env=usual, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    made = {f.name for f in (tmp_path / "out").iterdir()}
    assert made == {"bench.json", "interference.json", "sm_time.json", "sm_probe.json", "steps.json", "steps_trace.json.gz", "sweep.json", "pair.log"}
    assert done.stdout.count(": exit 0 after") == 12
