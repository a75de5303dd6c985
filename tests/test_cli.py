"""The command line: every text a person reads, exit codes, JSON, and inputs that nobody should give."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tidec import cli

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.usefixtures("own_environment")
SMALL = '{"params": [{"name": "w", "shape": [6, 4], "dtype": "bf16"}, {"name": "b", "shape": [5], "dtype": "bf16"}]}'


def process(*argv: object, **options) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return subprocess.run([sys.executable, "-m", "tidec", *map(str, argv)], text=True, env=environment, timeout=120, check=False,
                          **({"capture_output": True} | options))


# ---- pages and usage

@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_a_help_page_reads(command, told, golden):
    golden(f"cli/help-{command or 'tidec'}.txt", told(*([command] if command else []), "--help"))


def test_every_option_is_in_the_help_page_of_its_command_only(told):
    options = {name: set(re.findall(r"--[a-z-]+", told(name, "--help"))) for name in cli.COMMANDS}
    assert all({"--json", "--version", "--help"} <= found for found in options.values())
    assert "--paper-sweep" in options["prove"] and not any("--paper-sweep" in found for name, found in options.items() if name != "prove")


def test_the_version_is_told(told):
    from tidec import __version__

    assert f"tidec {__version__}\nexit 0\n" in told("--version") and f"tidec {__version__}\nexit 0\n" in told("prove", "--version")


USAGE = {
    "nothing": [],
    "no-such-command": ["compose"],
    "option-before-command": ["--topo", "8x8"],
    "no-such-option": ["why-not", "--topo", "8x8", "--group", "examples/llama70b.json", "--colour"],
    "abbreviated-option": ["why-not", "--topo", "8x8", "--gro", "examples/llama70b.json"],
    "no-group": ["compile", "--topo", "8x8"],
    "no-topology-file": ["why-not", "--topo", "8y8", "--group", "examples/llama70b.json"],
    "too-many-lanes": ["why-not", "--topo", "1x73", "--group", "examples/llama70b.json"],
    "no-group-file": ["why-not", "--topo", "8x8", "--group", "examples/no-such.json"],
    "group-is-a-folder": ["why-not", "--topo", "8x8", "--group", "examples"],
    "no-such-knob": ["explain", "--topo", "8x8", "--group", "examples/llama70b.json", "--set", "w=4"],
    "no-such-capability": ["explain", "--topo", "8x8", "--group", "examples/llama70b.json", "--capability", "magic"],
    "prove-without-schedule": ["prove", "--lanes", "8"],
    "prove-no-such-schedule": ["prove", "--schedule", "tide_rx", "--lanes", "8"],
    "prove-too-many-lanes": ["prove", "--schedule", "tide_rs", "--lanes", "73"],
    "prove-knob-of-another-schedule": ["prove", "--schedule", "tide_ag", "--lanes", "8", "--set", "W=4"],
    "prove-no-such-capability": ["prove", "--schedule", "tide_ag", "--lanes", "8", "--capability", "magic"],
    "prove-capability-of-no-use": ["prove", "--schedule", "ring_ag", "--lanes", "8", "--capability", "nvls"],
    "sweep-with-lanes": ["prove", "--paper-sweep", "--lanes", "8"],
    "explain-nothing": ["explain"],
    "explain-both": ["explain", "V104", "--topo", "8x8"],
    "explain-no-such-code": ["explain", "V999"],
}


@pytest.mark.parametrize("name", USAGE)
def test_a_wrong_call_says_what_to_do(name, told, golden):
    text = told(*USAGE[name])
    golden(f"cli/usage-{name}.txt", text)
    assert text.endswith("exit 2\n") and "  help: " in text


def test_an_unknown_variable_is_warned_of(told, golden, monkeypatch):
    monkeypatch.setenv("TIDEC_CACHEDIR", "/elsewhere")
    golden("cli/unknown-variable.txt", told("explain", "P014"))


def test_an_error_is_one_json_object_too(json_of, capsys):
    exit_code, content = json_of("explain", "--topo", "8x8", "--group", "examples/no-such.json")
    assert exit_code == content["exit"] == 2 and content["schema"] == "tidec.explain/1"
    assert content["error"]["code"] == "P001" and content["error"]["name"] == "usage" and "no-such.json" in content["error"]["sentence"]
    assert json_of("no-such-command")[1]["error"]["code"] == "P001"


# ---- inputs that nobody should give

WEIRD = {
    "empty": b"",
    "spaces": b" \n" * 10,
    "binary": bytes(range(256)),
    "nul": SMALL.encode().replace(b"bf16", b"b\0f16"),
    "utf-16": SMALL.encode("utf-16"),
    "cut": SMALL.encode()[:-20],
    "deep": b"[" * 100_000,
    "long": b"[" + b"0," * 200_000 + b"0]",
    "many bytes": b'{"params": "' + b"x" * 10_000_000 + b'"}',
    "number": b"3",
    "no groups": b'{"groups": []}',
}


@pytest.mark.parametrize("name", WEIRD)
def test_a_file_that_is_no_group_file_is_refused(name, group, told):
    text = told("why-not", "--topo", "2x2", "--group", group(WEIRD[name]))
    assert text.endswith("exit 2\n") and "stderr:\nerror[P00" in text and "  help: " in text and "Traceback" not in text and len(text) < 2000


def test_a_byte_order_mark_is_said_or_skipped(group, told):
    text = told("why-not", "--topo", "2x2", "--group", group(b"\xef\xbb\xbf" + SMALL.encode()))
    assert text.endswith("exit 0\n") or "error[P002" in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_a_file_that_cannot_be_read_is_refused(group, told):
    file = group(SMALL)
    file.chmod(0)
    assert "Permission denied" in told("why-not", "--topo", "2x2", "--group", file)


def test_paths_with_spaces_and_other_letters_are_fine(tmp_path, told):
    (tmp_path / "a folder").mkdir()
    file = tmp_path / "a folder" / "m\u00f6del \U0001f600.json"
    file.write_text(SMALL)
    assert told("why-not", "--topo", "2x2", "--group", file).endswith("exit 0\n")


def test_a_path_that_is_no_text_is_printed_as_its_bytes(tmp_path):
    name = os.fsdecode(bytes(tmp_path) + b"/m\xff.json")
    result = process("why-not", "--topo", "2x2", "--group", name, encoding="latin-1")
    assert result.returncode == 2 and "Traceback" not in result.stderr and "cannot be read" in result.stderr


def test_a_narrow_terminal_encoding_is_no_error(tmp_path):
    (tmp_path / "m.json").write_text('{"groups": [{"name": "gr\u00f6\u00dfe", ' + SMALL[1:-1] + "}]}", encoding="utf-8")
    result = process("explain", "--topo", "2x2", "--group", tmp_path / "m.json", env={"PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0 and "gr\\xf6\\xdfe" in result.stdout


# ---- how a process ends

def test_the_module_is_the_command():
    result = process("explain", "V104")
    assert result.returncode == 0 and result.stdout.startswith("V104 exclusive\n") and result.stderr == ""


def test_a_reader_that_leaves_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = process("explain", "V104", capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


def test_a_full_disk_behind_stdout_is_told():
    with open("/dev/full", "w") as full:
        result = process("explain", "V104", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 6 and result.stderr.startswith("error[E003 unwritable]: stdout cannot be written")


def test_an_interrupt_is_one_word(told, monkeypatch):
    def interrupted(options, environment):
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.COMMANDS, "why-not", interrupted)
    assert told("why-not", "--topo", "2x2", "--group", "x").endswith("stderr:\ninterrupted\nexit 130\n")


def test_a_missing_extra_says_how_to_get_it(golden):
    hide = "import sys; sys.modules['z3'] = None; from tidec.cli import main; sys.exit(main(['prove', '--schedule', 'tide_ag', '--lanes', '2']))"
    result = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert result.returncode == 6 and result.stdout == ""
    golden("cli/missing-extra.txt", result.stderr)


def test_another_missing_module_is_ours_to_mend(monkeypatch):
    def broken(options, environment):
        raise ModuleNotFoundError("No module named 'tidec.commands.nothing'", name="tidec.commands.nothing")

    monkeypatch.setitem(cli.COMMANDS, "why-not", broken)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["why-not", "--topo", "2x2", "--group", "x"])
