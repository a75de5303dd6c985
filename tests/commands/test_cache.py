"""What `tidec cache` says, and what it lets in."""
from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import pytest

from tidec import cli
from tidec.cache.entry import check_entry
from tidec.cache.locks import share
from tidec.cache.workspace import WORK
from tidec.errors import Diagnostic, TidecError

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.usefixtures("kept_proofs")
SMALL = '{"params": [{"name": "w", "shape": [6, 4], "dtype": "bf16"}, {"name": "b", "shape": [5], "dtype": "bf16"}]}'


def stable(text):
    """Without what changes with every byte that is emitted, and with the proofs that other tests found: digests, sizes and widths."""
    text = re.sub(r"\b[0-9a-f]{64}\b", "<digest>", re.sub(r"\b[0-9a-f]{12}\b", "<digest12>  ", text))
    text = re.sub(r" *\b\d+(\.\d+)? (B|KiB|MiB)\b", " <size>", text)
    text = re.sub(r"  +", "  ", re.sub(r"(proof .*\n)+", "proof ...\n", text))
    return re.sub(r"\d+ kept proofs?", "<n> kept proofs", text)


@pytest.fixture
def kept(told, group):
    """The folder of a bundle that a compile has kept."""
    text = told("compile", "--topo", "2x2", "--group", group(SMALL), "--no-echo")
    assert text.endswith("exit 0\n"), text
    return Path(os.environ["TIDEC_CACHE_DIR"]) / text.splitlines()[-2].split("/")[-1]


@pytest.fixture
def archive(told, kept, tmp_path):
    assert told("cache", "export", "-o", tmp_path / "a.tar").endswith("exit 0\n")
    return tmp_path / "a.tar"


def add_library(bundle):
    """What a build leaves, as small as it can be."""
    (bundle / "lib").mkdir()
    files = {"lib/host-x86_64.so": b"\x7fELF" * 100, "build.log": b"c++\n"}
    for name, data in files.items():
        (bundle / name).write_bytes(data)
    build = json.dumps({"files": {n: {"sha256": sha256(d).hexdigest(), "size": len(d)} for n, d in files.items()}}, sort_keys=True, separators=(",", ":")).encode()
    (bundle / "build.json").write_bytes(build)
    (bundle / "build.sha256").write_text(f"{sha256(build).hexdigest()}  build.json\n")


def files(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_every_command_reads(told, golden, kept, tmp_path, monkeypatch):
    monkeypatch.setattr("tidec.commands.cache._ago", lambda seconds: "just now" if seconds < 600 else "long ago")
    told_all = [told("cache", *a) for a in (
        ["ls"], ["path"], ["path", kept.name], ["verify"], ["export", "-o", tmp_path / "a.tar"], ["import", tmp_path / "a.tar"], ["gc", "--dry-run", "--max-gib", "0"], ["gc"])]
    monkeypatch.setenv("TIDEC_CACHE_DIR", str(tmp_path / "other"))
    told_all += [told("cache", "import", tmp_path / "a.tar"), told("cache", "gc", "--older-than", "0"), told("cache", "ls"), told("cache", "verify")]
    golden("cli/cache.txt", "\n".join(map(stable, told_all)))


@pytest.mark.parametrize("action", ["ls", "path", "verify", "export", "import", "gc"])
def test_a_help_page_reads(action, told, golden):
    golden(f"cli/help-cache-{action}.txt", told("cache", action, "--help"))


def test_every_command_is_one_json_object(json_of, kept, tmp_path):
    more = {"export": ["-o", tmp_path / "a.tar"], "import": [tmp_path / "a.tar"]}
    found = {}
    for action in ("ls", "path", "verify", "export", "import", "gc"):
        code, found[action] = json_of("cache", action, *more.get(action, []))
        assert code == found[action]["exit"] == 0 and found[action]["schema"] == "tidec.cache/1" and found[action]["action"] == action
    (listed,) = found["ls"]["bundles"]
    assert (listed["digest"], listed["path"], listed["topology"], listed["groups"], listed["plans"]) == (kept.name, str(kept), "2x2", 1, 2)
    assert listed["bytes"] == sum(map(len, files(kept).values())) and not listed["has_libraries"]
    assert found["ls"]["proofs"]["count"] == found["verify"]["proofs"] > 0
    assert found["verify"]["verdict"] == "ok" and [(b["digest"], b["verdict"]) for b in found["verify"]["bundles"]] == [(kept.name, "ok")]
    assert found["export"]["bundles"] == [kept.name] and found["export"]["bytes"] == (tmp_path / "a.tar").stat().st_size
    assert found["import"]["new"] == 0 and found["gc"]["freed_bytes"] == 0


WRONG = {
    "no-action": [], "no-such-digest": ["path", "0000"], "no-digest": ["path", "thesis"], "export-nowhere": ["export"],
    "nothing-to-export": ["export", "-o", "a.tar"], "no-archive": ["import", "no-such.tar"], "no-number": ["gc", "--max-gib", "lots"], "negative": ["gc", "--older-than", "-1"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_says_what_to_do(name, told, golden):
    text = told("cache", *WRONG[name])
    golden(f"cli/cache-{name}.txt", text)
    assert text.endswith("exit 2\n") and "  help: " in text


def test_an_action_that_does_not_exist_names_those_that_do(told):
    text = told("cache", "clear")
    assert text.endswith("exit 2\n") and "export" in text and "Traceback" not in text


# ---- changed bytes

def test_one_byte_of_any_file_of_a_kept_bundle_is_exit_5_and_its_name(told, kept, draws):
    random = draws(3)
    add_library(kept)
    assert told("cache", "verify", kept.name).endswith("exit 0\n")
    for name in sorted(files(kept)):
        whole = (kept / name).read_bytes()
        changed = bytearray(whole)
        changed[random.randrange(len(whole))] ^= random.randrange(1, 256)
        (kept / name).write_bytes(changed)
        text = told("cache", "verify")
        assert text.endswith("exit 5\n") and re.search(rf"^error\[C001 tampered\]: .*{re.escape(name)}.* of the kept bundle {re.escape('<tmp>')}", text, re.M), (name, text)
        assert "<tmp>/cache" in text and f"{kept.name[:12]}  damaged" in text
        (kept / name).write_bytes(whole)
    assert told("cache", "verify").endswith("exit 0\n")


def test_one_byte_of_any_file_of_an_archive_is_exit_5_and_its_name(told, kept, tmp_path, draws, monkeypatch):
    random = draws(5)
    add_library(kept)
    told("cache", "export", "-o", tmp_path / "a.tar")
    whole = (tmp_path / "a.tar").read_bytes()
    monkeypatch.setenv("TIDEC_CACHE_DIR", str(tmp_path / "other"))
    at = 0
    for name in ("0-tidec-archive.json", *(f"{kept.name}/{n}" for n in sorted(files(kept)))):
        size = int(whole[at + 124:at + 135], 8)
        changed = bytearray(whole)
        changed[at + 512 + random.randrange(size)] ^= random.randrange(1, 256)
        (tmp_path / "b.tar").write_bytes(changed)
        text = told("cache", "import", tmp_path / "b.tar")
        assert text.endswith("exit 5\n") and "error[C005 damaged-archive]" in text and name.rpartition("/")[2] in text.partition(" of the archive ")[0], (name, text)
        at += 512 + size + -size % 512
    assert whole[at:] == bytes(1024) and [n for n in os.listdir(tmp_path / "other") if n != WORK] == []
    assert told("cache", "import", tmp_path / "a.tar").endswith("exit 0\n")


def test_a_changed_proof_is_exit_5(told, kept):
    proof = next((kept.parent / "proofs").iterdir())
    whole = proof.read_bytes()
    proof.write_bytes(whole + b" ")
    text = told("cache", "verify")
    proof.write_bytes(whole)        # other tests are given it
    assert text.endswith("exit 5\n") and f"{proof.name} is not what was written there" in text


def test_a_bundle_that_is_whole_and_wrong_is_neither_verified_nor_imported(told, kept, tmp_path, monkeypatch):
    """Every digest fits, and the plan is for another bundle's ask: only the re-check can tell."""
    def seal(folder):
        manifest = json.loads((folder / "manifest.json").read_bytes())
        for name in manifest["files"]:
            data = (folder / name).read_bytes()
            manifest["files"][name] = {"sha256": sha256(data).hexdigest(), "size": len(data)}
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
        digest = sha256(text).hexdigest()
        (folder / "manifest.json").write_bytes(text)
        (folder / "manifest.sha256").write_text(f"{digest}  manifest.json\n")
        return digest

    file = next(kept.glob("*.ag.plan.json"))
    text = file.read_text()
    assert '"nodes":2' in text
    file.write_text(text.replace('"nodes":2', '"nodes":3', 1))
    wrong = kept.with_name(seal(kept))
    kept.rename(wrong)
    check_entry(wrong, wrong.name)
    assert not told("cache", "verify").endswith("exit 0\n")
    assert told("cache", "export", wrong.name, "-o", tmp_path / "wrong.tar").endswith("exit 0\n")
    monkeypatch.setenv("TIDEC_CACHE_DIR", str(tmp_path / "other"))
    assert not told("cache", "import", tmp_path / "wrong.tar").endswith("exit 0\n")
    assert [n for n in os.listdir(tmp_path / "other") if n != WORK] == []


def test_a_plan_that_cannot_be_decided_here_is_exit_3_and_not_imported(told, kept, archive, monkeypatch, tmp_path):
    def recheck(path):
        raise TidecError(Diagnostic("V901", "small.ag.plan.json cannot be re-checked without the solver", help="tidec verify --prove"))

    monkeypatch.setattr("tidec.commands.cache.recheck", recheck)
    text = told("cache", "verify")
    assert text.endswith("exit 3\n") and f"{kept.name[:12]}  unknown" in text and "error[V901" in text
    kept.rename(tmp_path / "away")
    assert told("cache", "import", archive).endswith("exit 3\n") and not kept.exists()


# ---- layers, use, and other users

NOTHING = """\
import sys
for name in ("z3", "networkx", "jinja2", "pybind11", "numpy", "torch", "cvc5"):
    sys.modules[name] = None
from tidec import cli
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_machine_with_nothing_but_python_imports_lists_verifies_and_exports(kept, archive, tmp_path):
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "TIDEC_CACHE_DIR": str(tmp_path / "far" / "away")}
    for argv in (["import", archive], ["ls"], ["verify"], ["export", "-o", tmp_path / "b.tar"], ["gc"]):
        done = subprocess.run([sys.executable, "-c", NOTHING, "cache", *map(str, argv)], env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, ""), (argv, done.stderr)
    assert (tmp_path / "b.tar").read_bytes() == archive.read_bytes() and files(tmp_path / "far" / "away" / kept.name) == files(kept)

def test_a_layer_is_listed_verified_and_used(told, kept, group, tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEC_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("TIDEC_CACHE_PATH", f"{kept.parent}:{tmp_path}/none")
    kept.parent.chmod(0o755)
    before = {p: p.stat().st_mtime_ns for p in kept.parent.rglob("*")}
    assert f"  {kept.parent}\n".replace(str(tmp_path), "<tmp>") in told("cache", "ls") and told("cache", "verify").endswith("exit 0\n")
    text = told("compile", "--topo", "2x2", "--group", group(SMALL), "--no-echo")
    assert text.endswith("exit 0\n") and f"\n{kept}\n".replace(str(tmp_path), "<tmp>") in text and "known from the proof store" in text
    assert text.count("warning[C006 unusable-layer]: the cache layer <tmp>/none is left out") == 1
    assert {p: p.stat().st_mtime_ns for p in kept.parent.rglob("*")} == before and not list((tmp_path / "own").glob("[0-9a-f]*"))
    (kept / "ask.json").write_text("{}")
    assert told("cache", "verify").endswith("exit 5\n") and told("compile", "--topo", "2x2", "--group", group(SMALL), "--no-echo").endswith("exit 5\n")
    kept.parent.chmod(0o777)
    assert "C003" in told("cache", "ls")


def test_gc_leaves_what_is_read_and_frees_the_rest(told, json_of, kept):
    with share(kept / "manifest.json"):
        code, found = json_of("cache", "gc", "--max-gib", "0")
        assert code == 0 and found["in_use"] == [str(kept)] and kept.is_dir() and {r["kind"] for r in found["removed"]} == {"proof"}
    before = sum(map(len, files(kept).values()))
    assert json_of("cache", "gc", "--max-gib", "0", "--dry-run")[1]["freed_bytes"] == before and kept.is_dir()
    assert json_of("cache", "gc", "--max-gib", "0")[1]["freed_bytes"] == before and not kept.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_under_another_path_imports_and_verifies_without_compilers_and_solvers(archive, forked_as, monkeypatch):
    for name in ("z3", "networkx", "jinja2", "pybind11", "numpy", "torch", "cvc5"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setenv("PATH", "")
    place = Path(tempfile.mkdtemp(prefix="tidec-"))
    try:
        shutil.copy(archive, place / "a.tar")
        os.chmod(place / "a.tar", 0o644)
        os.chown(place, 65534, 65534)
        monkeypatch.setenv("TIDEC_CACHE_DIR", str(place / "cache"))
        for argv in (["cache", "import", str(place / "a.tar")], ["cache", "verify"], ["cache", "export", "-o", str(place / "b.tar")]):
            code, text = forked_as(65534, lambda argv=argv: cli.main(argv))
            assert code == 0, text
        assert (place / "b.tar").read_bytes() == archive.read_bytes() and (place / "cache").stat().st_uid == 65534
    finally:
        shutil.rmtree(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_cache_that_may_not_be_written_or_is_anothers_says_which_variable_to_set(archive, forked_as, monkeypatch):
    place = Path(tempfile.mkdtemp(prefix="tidec-"))
    try:
        shutil.copy(archive, place / "a.tar")
        os.chmod(place, 0o755)
        (place / "cache").mkdir(mode=0o555)
        monkeypatch.setenv("TIDEC_CACHE_DIR", str(place / "cache"))
        code, text = forked_as(65534, lambda: cli.main(["cache", "import", str(place / "a.tar")]))
        assert code == 5 and "belongs to user 0, not to you (65534)" in text and "TIDEC_CACHE_DIR" in text
        os.chown(place / "cache", 65534, 65534)
        code, text = forked_as(65534, lambda: cli.main(["cache", "import", str(place / "a.tar")]))
        assert code == 6 and "read-only for you" in text and "TIDEC_CACHE_DIR" in text and "Traceback" not in text and os.listdir(place / "cache") == []
    finally:
        shutil.rmtree(place)


@pytest.fixture
def forked_as():
    """`forked_as(user, call)` is the exit code that the call gives in a process of that user, and what it prints there."""

    def run(user, call):
        with tempfile.TemporaryFile("w+") as told:
            child = os.fork()
            if child == 0:
                code = 99
                try:
                    sys.stdout = sys.stderr = told
                    os.setgroups([])
                    os.setresgid(user, user, user)
                    os.setresuid(user, user, user)
                    code = call()
                    told.flush()
                finally:
                    os._exit(code)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            told.seek(0)
            return code, told.read()

    return run
