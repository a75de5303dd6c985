"""Which compiler is used, and what is said where it does not work."""
import sys
import time

import pytest

from tidec.build.toolchain import find_compiler, run_tool
from tidec.errors import Exit, TidecError


def refused(call, *args, **rest):
    with pytest.raises(TidecError) as caught:
        call(*args, **rest)
    assert caught.value.exit is Exit.ENVIRONMENT
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E002"
    return diagnostic


def script(folder, name, text):
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def test_the_compiler_that_cxx_names_comes_first(tmp_path, monkeypatch):
    mine = script(tmp_path, "my-c++", 'echo "mine 1.0 $*"')
    monkeypatch.setenv("CXX", f"{mine} -fmine 'two words'")
    found = find_compiler()
    assert found.command == (str(mine), "-fmine", "two words") and found.version == "mine 1.0 -fmine two words --version"


def test_without_cxx_the_first_that_is_installed_is_used(tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    script(tmp_path, "clang++", "echo clang")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler().version == "clang"
    script(tmp_path, "c++", "echo plain")
    assert find_compiler().version == "plain"


def test_no_compiler_says_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    d = refused(find_compiler)
    assert "no C++ compiler" in d.sentence and "g++, c++, clang++" in d.reason and "apt-get install g++" in d.help


@pytest.mark.parametrize(("value", "says"), [("no-such-compiler -O2", "no-such-compiler was not found"), ("'unfinished", "no command")])
def test_a_cxx_that_is_no_compiler_is_named(monkeypatch, value, says):
    monkeypatch.setenv("CXX", value)
    assert says in refused(find_compiler).sentence


def test_a_compiler_that_does_not_answer_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(script(tmp_path, "broken", "echo something is error-prone >&2; exit 3")))
    d = refused(find_compiler)
    assert "ended with 3" in d.sentence and d.example == ("something is error-prone",)


def test_a_compiler_that_cannot_be_started_is_named(tmp_path):
    (tmp_path / "c++").write_bytes(b"\x7fELF nothing")
    (tmp_path / "c++").chmod(0o755)
    assert "cannot be started" in refused(run_tool, (str(tmp_path / "c++"),), deadline_s=5).sentence


def test_a_deadline_ends_the_compiler():
    start = time.monotonic()
    d = refused(run_tool, (sys.executable, "-c", "import time; time.sleep(60)"), deadline_s=0.2)
    assert "did not end within" in d.sentence and time.monotonic() - start < 20


def test_errors_are_shown_before_the_rest():
    lines = "; ".join(f"print('note {i}')" for i in range(9))
    d = refused(run_tool, (sys.executable, "-c", f"{lines}; print('x.cpp:3: error: no'); raise SystemExit(1)"), deadline_s=20)
    assert d.example == ("x.cpp:3: error: no",)


def test_what_a_tool_prints_comes_back():
    told = run_tool((sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr)"), deadline_s=20)
    assert sorted(told.split()) == ["err", "out"]
