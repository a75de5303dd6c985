"""The reports about the cache, as small tests through the command line: rows 47, 49, 50, 52 and 57 of the shared list of cases."""
from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest

from tidec import cli
from tidec.cache import store
from tidec.cache.entry import check_entry
from tidec.cache.workspace import WORK
from tidec.emit.bundle import read_bundle

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.usefixtures("kept_proofs")
SMALL = '{"params": [{"name": "w", "shape": [%d, 4], "dtype": "bf16"}, {"name": "b", "shape": [5], "dtype": "bf16"}]}'


def asks(group, *, rows=6):
    return ["compile", "--topo", "2x2", "--group", str(group(SMALL % rows, name=f"small-{rows}.json")), "--no-echo"]


def started(argv, *, cache, out=subprocess.PIPE, **environment):
    own = {name: value for name, value in os.environ.items() if not name.startswith("TIDEC_")}
    return subprocess.Popen([sys.executable, "-m", "tidec", *map(str, argv)], stdout=out, stderr=subprocess.STDOUT, text=True,
                            env={**own, "PYTHONPATH": str(ROOT), "TIDEC_CACHE_DIR": str(cache), **environment})


def ended(argv, *, cache, **environment):
    """The exit code of a command in a process of its own, and what it told."""
    job = started(argv, cache=cache, **environment)
    said, _ = job.communicate(timeout=300)
    return job.returncode, said


def with_proofs(cache, tmp_path, name):
    """A cache folder without bundles that knows the proofs of another."""
    shutil.copytree(cache / "proofs", tmp_path / name / "proofs")
    (tmp_path / name).chmod(0o700)
    return tmp_path / name


def kept(cache):
    return sorted(p for p in Path(cache).iterdir() if len(p.name) >= 64)


@pytest.fixture
def cache():
    return Path(os.environ["TIDEC_CACHE_DIR"])


@pytest.mark.parametrize("seconds", [5.0, 1e9], ids=["the winner is seen after 5 s", "the winner is never seen"])
def test_row_47_the_loser_of_a_rename_that_cannot_see_the_winner_loads_a_whole_bundle(seconds, group, cache, capsys, monkeypatch):
    """The rename fails, since the winner is there, and looking at it says for so long that it is not. One load, exit 0."""
    assert cli.main(asks(group)) == 0
    (winner,) = kept(cache)
    capsys.readouterr()
    clock, loads = [0.0], []
    real = {name: getattr(os, name) for name in ("open", "lstat", "stat")}

    def looking(name):
        def look(path, *args, **rest):
            if not isinstance(path, int) and f"{os.fspath(path)}/".startswith(f"{winner}/") and clock[0] < seconds:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            return real[name](path, *args, **rest)

        return look

    with monkeypatch.context() as patch:
        for name in real:
            patch.setattr(os, name, looking(name))
        patch.setattr(store, "monotonic", lambda: clock[0])
        patch.setattr(store, "sleep", lambda s: clock.__setitem__(0, clock[0] + s))
        patch.setattr(store, "keep_aside", lambda *args, real=store.keep_aside: loads.append(1) or real(*args))
        assert cli.main(asks(group)) == 0
    said, err = capsys.readouterr()
    place = Path(said.splitlines()[-1])
    assert err == "" and len(loads) == (seconds > store.VISIBLE_S) and (place == winner) == (not loads)
    assert check_entry(place, winner.name) and read_bundle(place).digest == winner.name and os.listdir(cache / WORK) == []
    assert cli.main(["cache", "gc"]) == 0 and kept(cache) == [winner]


def test_row_49_two_signatures_twice_at_once_in_one_cold_cache_do_not_mix(group, cache, tmp_path):
    assert cli.main(asks(group)) == 0
    cold = with_proofs(cache, tmp_path, "cold")
    jobs = [started(asks(group, rows=rows), cache=cold) for rows in (6, 7, 6, 7)]
    said = [job.communicate(timeout=120)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 4, said
    places = [Path(text.splitlines()[-1]) for text in said]
    assert places[0] == places[2] != places[1] == places[3] and kept(cold) == sorted(set(places)) and os.listdir(cold / WORK) == []
    for place, rows in zip(places, (6, 7, 6, 7)):
        check_entry(place, place.name)
        assert f"[{rows},4]" in (place / "ask.json").read_text() and read_bundle(place).digest == place.name
    assert ended(["cache", "verify"], cache=cold)[0] == 0


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="a library needs g++")
def test_row_49_libraries_are_those_of_their_own_sources(group, tmp_path):
    jobs = [started([*asks(group, rows=rows), "--target", "host"], cache=tmp_path / "cold") for rows in (6, 7, 6, 7)]
    said = [job.communicate(timeout=400)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * 4, said
    assert all(check_entry(place, place.name).built for place in kept(tmp_path / "cold")) and os.listdir(tmp_path / "cold" / WORK) == []
    # A library that was built from other sources, or by another compiler, would be built again.
    stamps = [os.stat(p / "lib" / "host-x86_64.so").st_mtime_ns for p in kept(tmp_path / "cold")]
    assert [ended([*asks(group, rows=rows), "--target", "host"], cache=tmp_path / "cold")[0] for rows in (6, 7)] == [0, 0]
    assert [os.stat(p / "lib" / "host-x86_64.so").st_mtime_ns for p in kept(tmp_path / "cold")] == stamps


STUB = """\
#!/bin/sh
case "$*" in *--version*) echo "g++ (stub) 12.0"; exit 0;; esac
echo $$ > {told}
read line < {never}
"""


def test_row_50_a_builder_that_was_killed_while_its_compiler_ran_blocks_nobody(group, cache, tmp_path):
    for name in ("told", "never"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "c++").write_text(STUB.format(told=tmp_path / "told", never=tmp_path / "never"))
    (tmp_path / "c++").chmod(0o755)
    job = started([*asks(group), "--target", "host"], cache=cache, out=subprocess.DEVNULL, CXX=str(tmp_path / "c++"))
    with open(tmp_path / "told") as told:
        compiler = int(told.read())
    try:
        job.kill()
        assert job.wait(30) == -signal.SIGKILL
        assert len(os.listdir(cache / WORK)) == 2 and kept(cache) == []
        # The orphaned compiler still runs, in the folder that the dead builder left.
        os.kill(compiler, 0)
        start = time.monotonic()
        assert cli.main(asks(group)) == 0
        assert time.monotonic() - start < 30
    finally:
        os.kill(compiler, signal.SIGKILL)
    (place,) = kept(cache)
    assert check_entry(place, place.name) and os.listdir(cache / WORK) == []


def mounted(options, script):
    """Run a script with a file system of its own at /mnt; skip where this is not allowed."""
    whole = f"mount -t tmpfs -o {options} none /mnt || exit 77\n{script}"
    own = {name: value for name, value in os.environ.items() if not name.startswith("TIDEC_")}
    try:
        done = subprocess.run(["unshare", *([] if os.geteuid() == 0 else ["-Ur"]), "-m", "sh", "-c", whole], capture_output=True, text=True, timeout=120, check=False,
                              env={**own, "PYTHONPATH": str(ROOT), "TIDEC_CACHE_DIR": "/mnt/cache", "PYTHON": sys.executable})
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("file systems cannot be mounted here")
    return done


def test_row_52_a_file_system_that_fills_is_refused_with_the_variable_to_set_and_nothing_half_stays(group):
    compile = " ".join(asks(group))
    done = mounted("size=64k,mode=755", f'"$PYTHON" -m tidec {compile}; echo "exit $?"; find /mnt/cache')
    exit_line = done.stdout.splitlines().index("exit 6")
    assert "error[E003 unwritable]: /mnt/cache cannot be written: its file system or your quota is full" in done.stderr, done.stderr
    assert "No space left on device" in done.stderr and "TIDEC_CACHE_DIR" in done.stderr and "Traceback" not in done.stderr
    left = done.stdout.splitlines()[exit_line + 1:]
    assert set(left) - {p for p in left if p.startswith("/mnt/cache/proofs/")} == {"/mnt/cache", "/mnt/cache/.work", "/mnt/cache/proofs"}


def test_row_52_a_file_system_that_is_read_only_is_refused_with_the_variable_to_set(group):
    compile = " ".join(asks(group))
    done = mounted("size=1m,mode=755", f'mkdir -m 700 /mnt/cache && mount -o remount,ro /mnt && "$PYTHON" -m tidec {compile}; echo "exit $?"; find /mnt/cache')
    assert done.stdout.splitlines()[-2:] == ["exit 6", "/mnt/cache"] and "read-only for you" in done.stderr, (done.stdout, done.stderr)
    assert "Read-only file system" in done.stderr and "TIDEC_CACHE_DIR" in done.stderr and "Traceback" not in done.stderr


def test_a_file_system_that_runs_nothing_keeps_bundles_and_no_libraries(group, tmp_path):
    """Sources alone may lie there; an archive with a library is refused, with the variable to set."""

    assert cli.main(asks(group)) == 0
    (place,) = kept(os.environ["TIDEC_CACHE_DIR"])
    assert cli.main(["cache", "export", "-o", str(tmp_path / "plain.tar")]) == 0
    (place / "lib").mkdir()
    (place / "lib" / "host-x86_64.so").write_bytes(b"so")
    build = json.dumps({"files": {"lib/host-x86_64.so": {"sha256": sha256(b"so").hexdigest(), "size": 2}}}, separators=(",", ":")).encode()
    (place / "build.json").write_bytes(build)
    (place / "build.sha256").write_text(f"{sha256(build).hexdigest()}  build.json\n")
    assert cli.main(["cache", "export", "-o", str(tmp_path / "built.tar")]) == 0
    script = "; ".join(f'"$PYTHON" -m tidec cache import {tmp_path}/{name}.tar; echo "exit $?"' for name in ("built", "plain"))
    done = mounted("size=4m,mode=755,noexec", script)
    assert [line for line in done.stdout.splitlines() if line.startswith("exit")] == ["exit 6", "exit 0"], done.stderr
    assert "error[E005 noexec]" in done.stderr and "TIDEC_CACHE_DIR" in done.stderr


def test_row_57_archives_are_the_same_under_every_hash_seed_path_and_day(group, cache, tmp_path):
    """tests/test_pipeline.py has the plans and sources of eight processes; here what is shipped, of two of them."""
    assert cli.main(asks(group)) == 0
    for seed in ("1", "4242"):
        own = with_proofs(cache, tmp_path, f"cache-{seed}")
        code, said = ended(asks(group), cache=own, PYTHONHASHSEED=seed)
        assert code == 0, said
        for path in own.rglob("*"):
            os.utime(path, (int(seed) * 86_400, int(seed) * 86_400))
        code, said = ended(["cache", "export", "-o", tmp_path / f"{seed}.tar"], cache=own, PYTHONHASHSEED=seed)
        assert code == 0, said
    one, other = ((tmp_path / f"{seed}.tar").read_bytes() for seed in ("1", "4242"))
    assert one == other and len(one) > 10_000
