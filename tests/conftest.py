"""What tests share: golden texts, and random draws whose seed stands in the failure."""
from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
