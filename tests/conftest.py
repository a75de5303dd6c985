"""What tests share: golden texts, random draws whose seed stands in the failure, and commands run in this process."""
from __future__ import annotations

import difflib
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tidec import cli

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).parent / "golden"
_SEEDS = pytest.StashKey[list[int]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts instead of comparing them; then read the diff")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)` holds a text against tests/golden/<name>."""
    update = request.config.getoption("--update-golden")

    def compare(name: str, text: str) -> None:
        file = GOLDEN / name
        if update:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="")
            return
        if not file.is_file():
            pytest.fail(f"there is no tests/golden/{name}: run pytest with --update-golden and read what it wrote", pytrace=False)
        want = file.read_bytes().decode("utf-8")
        if text != want:
            diff = "\n".join(difflib.unified_diff(want.splitlines(), text.splitlines(), f"tests/golden/{name}", "this run", lineterm=""))
            pytest.fail(f"{diff or 'the line ends differ'}\n(--update-golden writes the new text)", pytrace=False)

    return compare


@pytest.fixture
def draws(request: pytest.FixtureRequest) -> Iterator[Callable[[int], random.Random]]:
    """`draws(seed)` gives random numbers that are the same in every run; a failure shows the seeds that were drawn from."""
    seeds = request.node.stash.setdefault(_SEEDS, [])

    def drawn(seed: int) -> random.Random:
        seeds.append(seed)
        return random.Random(seed)

    yield drawn


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    seeds = item.stash.get(_SEEDS, [])
    if report.failed and seeds:
        report.sections.append(("seeds", f"the last draws came from seed {seeds[-1]} (all of them: {seeds})"))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests counted: of each thing how many, and the seconds that were spent on them."""
    counted: dict[str, tuple[int, int, float]] = {}
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "counted":
                what, count, seconds = value
                tests, total, spent = counted.get(what, (0, 0, 0.0))
                counted[what] = tests + 1, total + count, spent + seconds
    for what, (tests, total, spent) in sorted(counted.items()):
        terminalreporter.write_line(f"{total:,} {what}, in {tests:,} tests: {spent:,.1f} s, {spent / tests:.2f} s each")


@pytest.fixture
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own, the checkout as working folder, and no variable of the user's."""
    for name in list(os.environ):
        if name.startswith("TIDEC_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TIDEC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(ROOT)


@pytest.fixture
def told(own_environment: None, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """`told(*argv)` runs a command in this process and gives all of it as one text: the command, stdout, stderr and the exit code."""

    def run(*argv: object) -> str:
        arguments = list(map(str, argv))
        code = cli.main(arguments)
        out, err = capsys.readouterr()
        parts = [f"$ tidec {' '.join(arguments)}".rstrip(), out.rstrip("\n"), f"stderr:\n{err}".rstrip("\n") if err else "", f"exit {code}"]
        text = "\n".join(p for p in parts if p) + "\n"
        return re.sub(r"\d+\.\d\d s\b", "0.00 s", text.replace(str(tmp_path), "<tmp>"))

    return run


@pytest.fixture
def json_of(own_environment: None, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict]]:
    """`json_of(*argv)` gives the exit code and the object that --json prints; stdout holds nothing else."""

    def run(*argv: object) -> tuple[int, dict]:
        code = cli.main([*map(str, argv), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def group(tmp_path: Path) -> Callable[..., Path]:
    """`group(text)` is a group file with that text."""

    def write(text: str | bytes, name: str = "small.json") -> Path:
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write


@pytest.fixture(scope="session")
def _proofs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proofs")


@pytest.fixture
def kept_proofs(own_environment: None, tmp_path: Path, _proofs: Path) -> Iterator[None]:
    """The proofs that other tests of this run found are known, so that a class is proved once a run."""
    own = tmp_path / "cache" / "proofs"
    shutil.copytree(_proofs, own)
    (tmp_path / "cache").chmod(0o700)
    own.chmod(0o700)
    yield
    if own.is_dir():
        shutil.copytree(own, _proofs, dirs_exist_ok=True)


@pytest.fixture(scope="session")
def rt_kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tidec_rt of this Python, compiled once a run."""
    from tidec.build.rt import build_rt

    kept = tmp_path_factory.mktemp("rt")
    build_rt(kept)
    return kept


@pytest.fixture(scope="session")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`hosted(plans)` is one library of them all for the host target, or for `target`, compiled once a run. Whether they are proved is not asked."""
    from tidec.build.library import build_library
    from tidec.emit.render import render
    from tidec.verify.certificate import Proved

    found: dict[tuple, Path] = {}

    def build(plans: Sequence, *, target: str = "host", flags: Sequence[str] = ("-O1",)) -> Path:
        key = (tuple(p.digest for p in plans), target, tuple(flags))
        if key not in found:
            beside = tmp_path_factory.mktemp("hosted")
            for source in render([Proved(p, "{}") for p in plans]):
                (beside / source.name).write_text(source.text)
            (beside / "manifest.sha256").write_text("of no bundle\n")
            found[key] = build_library(beside, target, flags=flags).path
        return found[key]

    return build
