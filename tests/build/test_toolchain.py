"""Which compiler is used, and what is said where it does not work."""
import os
import sys
import time

import pytest

from tidec.build.toolchain import find_architecture, find_compiler, find_driver, find_nvcc, run_tool
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


# ---- CUDA

NVCC = 'echo "nvcc: NVIDIA (R) Cuda compiler driver"; echo "Cuda compilation tools, release {0}, V{0}.99"'


@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """`toolkit("12.3")` is a CUDA toolkit with an nvcc of that release, as CUDA_HOME names it."""

    def make(release: str):
        (tmp_path / "cuda" / "bin").mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
        return script(tmp_path / "cuda" / "bin", "nvcc", NVCC.format(release))

    return make


def test_nvcc_is_that_of_cuda_home_with_the_compiler_that_cxx_names(toolkit, tmp_path, monkeypatch):
    nvcc = toolkit("13.0")
    monkeypatch.setenv("CXX", str(script(tmp_path, "my-c++", "echo mine")))
    found = find_nvcc()
    assert found.command == (str(nvcc), "-ccbin", str(tmp_path / "my-c++")) and found.release == (13, 0) and found.version == "nvcc 13.0.99"


def test_no_nvcc_an_old_one_and_an_old_gpu_have_messages_of_their_own(toolkit, tmp_path, monkeypatch):
    """huggingface/transformers#47154: each says what was found, what is needed, and the variable to set."""
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    missing = refused(find_nvcc)
    assert "nvcc was not found" in missing.sentence and f"CUDA_HOME is {tmp_path / 'nowhere'}" in missing.reason and "12.8" in missing.help
    toolkit("12.3")
    old = refused(find_nvcc)
    assert "nvcc 12.3 is too old" in old.sentence and "found 12.3, needed 12.8" in old.reason and "CUDA_HOME" in old.help
    monkeypatch.setenv("TIDEC_CUDA_ARCH", "8.0")
    below = refused(find_architecture)
    assert "compute capability 8.0 is below 9.0" in below.sentence and "TIDEC_CUDA_ARCH says 8.0" in below.reason and "TIDEC_CUDA_ARCH" in below.help
    assert len({d.sentence for d in (missing, old, below)}) == 3


def test_without_cuda_home_the_message_says_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if not os.path.exists("/usr/local/cuda/bin/nvcc"):
        assert "CUDA_HOME is not set" in refused(find_nvcc).reason


@pytest.mark.parametrize(("named", "means"), [("9.0", "sm_90"), ("10.0", "sm_100"), ("10.3", "sm_103"), ("12.0", "sm_120")])
def test_the_variable_names_the_architecture(monkeypatch, named, means):
    monkeypatch.setenv("TIDEC_CUDA_ARCH", named)
    assert find_architecture() == means


@pytest.mark.parametrize("named", ["90", "sm_90", "9", "nine", "9.0.0"])
def test_a_variable_that_is_no_capability_is_named(monkeypatch, named):
    monkeypatch.setenv("TIDEC_CUDA_ARCH", named)
    assert f"TIDEC_CUDA_ARCH is {named!r}" in refused(find_architecture).sentence


def test_the_first_gpu_says_its_capability(tmp_path, monkeypatch):
    monkeypatch.delenv("TIDEC_CUDA_ARCH", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    script(tmp_path, "nvidia-smi", "echo 9.0; echo 9.0")
    assert find_architecture() == "sm_90"
    script(tmp_path, "nvidia-smi", "echo 'no devices were found' >&2; exit 6")
    assert "no GPU says its compute capability" in refused(find_architecture).sentence


def test_nvidia_smi_says_the_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    script(tmp_path, "nvidia-smi", 'test "$1" = --query-gpu=driver_version && echo 580.159.04 && echo 580.159.04')
    assert find_driver() == "580.159.04"
    script(tmp_path, "nvidia-smi", "exit 6")
    assert find_driver() == ""
