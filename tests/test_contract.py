"""The contract of commands, JSON fields and exit codes, as the tool beside the checkout holds it."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOL = ROOT.parent / "shared" / "tools" / "contract.py"


@pytest.mark.slow
@pytest.mark.skipif(not TOOL.is_file(), reason="the contract's tool is not beside this checkout")
def test_the_contract_holds(tmp_path):
    tidec = tmp_path / "tidec"
    tidec.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m tidec "$@"\n')
    tidec.chmod(0o755)
    told = subprocess.run([sys.executable, str(TOOL), str(tidec)], capture_output=True, text=True, env={**os.environ, "TIDEC_CACHE_DIR": str(tmp_path / "cache")}, check=False)
    lines = told.stdout.splitlines()
    failed = [line for line in lines if line.startswith("FAIL")]
    assert not failed and sum(line.startswith("ok ") for line in lines) > 50, told.stdout + told.stderr
