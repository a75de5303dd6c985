"""Every argument that names a file: what is no file, or no such file, is an error with a code and a help line, and nothing is waited for."""
from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidec.errors import CODES

SMALL = '{"params": [{"name": "w", "shape": [6, 4], "dtype": "bf16"}]}'
TOPOLOGY = '{"schema": "tidec.topo/1", "nodes": 2, "lanes": 2}'

# What each command reads, as <x>; and what else it is given.
INPUTS = {
    "compile --topo": "compile --topo <x> --group <good> -o <out>", "compile --group": "compile --topo 2x2 --group <x> -o <out>",
    "explain --topo": "explain --topo <x> --group <good>", "explain --group": "explain --topo 2x2 --group <x>",
    "why-not --topo": "why-not --topo <x> --group <good>", "why-not --group": "why-not --topo 2x2 --group <x>",
    "run --topo": "run --topo <x> --group <good>", "run --group": "run --topo 2x2 --group <x>",
}
BUNDLES = {"verify": "verify <x>", "explain": "explain <x>", "run": "run <x>", "import": "cache import <x>"}
OUTPUTS = {"compile -o": "compile --topo 2x2 --group <good> -o <x>", "compile --dump": "compile --topo 2x2 --group <good> -o <out> --dump <x>"}


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)       # its path may be longer than an address
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None, "pipe": make_pipe, "socket": make_socket, "folder": Path.mkdir, "device": lambda path: path.symlink_to("/dev/null"),
    "endless device": lambda path: path.symlink_to("/dev/zero"), "loop": lambda path: path.symlink_to(path.name), "pipe behind a link": lambda path: (make_pipe(path.with_name("p")), path.symlink_to("p")),
    "byte order mark": lambda path: path.write_bytes(b"\xef\xbb\xbf" + SMALL.encode()), "UTF-16": lambda path: path.write_bytes(SMALL.encode("utf-16")),
    "denied": lambda path: path.write_text(SMALL), "no text": lambda path: path.write_bytes(b""),
}
# What a message about an input must say.
WORDS = {
    "nothing": "No such file", "pipe": "it is a pipe", "socket": "No such device or address", "folder": "it is a folder", "device": "it is a device", "endless device": "it is a device",
    "loop": "Too many levels", "pipe behind a link": "it is a pipe", "byte order mark": "begins with a byte order mark", "UTF-16": "is not UTF-8 text",
    "denied": "Permission denied", "no text": "it ends where a value should be",
}


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Nothing here may wait: after 20 s of waiting it fails."""
    def stop(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 20)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def refused(told: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], str]:
    """`refused(command, kind)` is what a command says of a path of a kind; "" is the empty path."""
    (tmp_path / "good.json").write_text(SMALL)

    def run(command: str, kind: str) -> str:
        path = tmp_path / "x"
        if kind:
            KINDS[kind](path)
        if kind == "denied":            # modes do not hold root back
            real = os.open
            monkeypatch.setattr(os, "open", lambda file, *rest, **more: deny() if os.fspath(file) == str(path) else real(file, *rest, **more))
        places = {"<x>": str(path) if kind else "", "<good>": str(tmp_path / "good.json"), "<out>": str(tmp_path / "out")}
        text = told(*(places.get(word, word) for word in command.split()))
        code = re.search(r"stderr:\nerror\[(\w+) ", text)
        assert code and code[1] in CODES and "\n  help: " in text and "Traceback" not in text, text
        assert re.search(r"exit [25]\n$" if "import" in command else r"exit 2\n$", text), text
        assert not (tmp_path / "out").exists()
        return text

    def deny() -> int:
        raise PermissionError(13, "Permission denied")

    return run


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", INPUTS)
def test_an_input_that_is_no_text_file_is_refused(command, kind, refused):
    assert WORDS[kind] in refused(INPUTS[command], kind)


@pytest.mark.parametrize("command", INPUTS)
def test_an_empty_path_of_an_input_is_refused(command, refused):
    assert "No such file" in refused(INPUTS[command], "")


@pytest.mark.parametrize("kind", ["", *(kind for kind in KINDS if kind not in ("denied", "byte order mark", "UTF-16"))])
@pytest.mark.parametrize("command", BUNDLES)
def test_what_is_no_bundle_or_archive_is_refused(command, kind, refused):
    text = refused(BUNDLES[command], kind)
    assert kind or command == "explain" or 'is "", which is no path' in text


def test_a_text_that_is_no_archive_is_named_on_one_line(told, tmp_path):
    """What stands where a header's name should is shown escaped, and not all of it."""
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbf{\n" + SMALL.encode() * 20)
    text = told("cache", "import", tmp_path / "x")
    (line,) = (x for x in text.splitlines() if x.startswith("error["))
    assert line.startswith("error[C005") and line.endswith("is not what export wrote") and len(line) < 300 and "\n  help: " in text


@pytest.mark.parametrize("command", ["verify", "explain", "run"])
def test_an_empty_path_is_not_the_folder_that_one_is_in(command, told, tmp_path, monkeypatch):
    """Also where that holds a bundle."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    assert "error[P001" in told(command, "")


@pytest.mark.parametrize("command", OUTPUTS)
def test_an_empty_path_to_write_to_is_refused_before_anything_is_done(command, refused, tmp_path):
    text = refused(OUTPUTS[command], "")
    assert 'is "", which is no path' in text and command.split()[1] in text and sorted(p.name for p in tmp_path.iterdir() if p.name != "cache") == ["good.json"]


@pytest.mark.parametrize("kind", ["pipe", "device", "byte order mark", "loop"])
@pytest.mark.parametrize("command", OUTPUTS)
def test_what_is_no_folder_is_never_written_to(command, kind, told, tmp_path, kept_proofs):
    (tmp_path / "good.json").write_text(SMALL)
    KINDS[kind](tmp_path / "x")
    before = os.lstat(tmp_path / "x")
    places = {"<x>": str(tmp_path / "x"), "<good>": str(tmp_path / "good.json"), "<out>": str(tmp_path / "out")}
    text = told(*(places.get(word, word) for word in OUTPUTS[command].split()))
    assert re.search(r"stderr:\nerror\[(C002|E003) ", text) and "\n  help: " in text and re.search(r"exit [26]\n$", text), text
    assert (os.lstat(tmp_path / "x").st_mode, os.lstat(tmp_path / "x").st_size) == (before.st_mode, before.st_size)


def test_an_archive_or_a_group_file_is_not_written_to_an_empty_path(told, tmp_path):
    for command in (["cache", "export", "-o", ""], ["capture", str(Path(__file__)), "-o", ""]):
        text = told(*command)
        assert 'error[P001 usage]: -o is "", which is no path' in text and text.endswith("exit 2\n"), text


@pytest.mark.parametrize("budget", ["1e-30", "0.0000000001", "1e-10"])
def test_a_budget_below_a_byte_is_refused(budget, told, tmp_path):
    (tmp_path / "good.json").write_text(SMALL)
    text = told("compile", "--topo", "2x2", "--group", tmp_path / "good.json", "-o", tmp_path / "out", "--budget", budget)
    assert f'error[P001 usage]: a budget of "{budget}" GiB is less than a byte' in text and text.endswith("exit 2\n")


def test_a_budget_of_a_byte_is_honoured(told, tmp_path, kept_proofs):
    (tmp_path / "good.json").write_text(SMALL)
    text = told("compile", "--topo", "2x2", "--group", tmp_path / "good.json", "-o", tmp_path / "out", "--budget", "1e-9")
    assert "error[V401" in text and "the budget is 1 B;" in text and " 0.0 " not in text and text.endswith("exit 1\n"), text
