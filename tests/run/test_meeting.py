"""Ranks meet at the store of the job before they exchange anything; one that does not come is named by all that came."""
from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from tidec.errors import TidecError
from tidec.run import meeting
from tidec.run.meeting import meet

RANKS = (4, 6, 7)


class Fake(dist.Store):
    """Like torch's fake store: it keeps nothing."""


class Ranks:
    """Ranks that are threads of this process, each with its store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stores: dict[int, dist.Store], *, backend: str = "gloo"):
        self._here = threading.local()
        monkeypatch.setattr(meeting, "dist", SimpleNamespace(
            get_process_group_ranks=list, get_rank=lambda: self.me, get_backend=lambda group: backend, DistNetworkError=dist.DistNetworkError, Store=dist.Store,
            distributed_c10d=SimpleNamespace(_get_default_store=lambda: stores[self.me])))

    @property
    def me(self) -> int:
        return self._here.rank

    def run(self, do: Callable[[int], object], ranks: tuple[int, ...] = RANKS) -> dict[int, str]:
        """What `do` raises on these ranks; "" = nothing."""
        found = dict.fromkeys(ranks, "nothing came of it")

        def rank(r: int) -> None:
            self._here.rank = r
            try:
                do(r)
                found[r] = ""
            except (TidecError, KeyboardInterrupt) as problem:
                found[r] = str(problem) or type(problem).__name__

        threads = [threading.Thread(target=rank, args=(r,)) for r in ranks]
        for t in threads:
            t.start()
        for t in threads:
            t.join(timeout=60)
        return found


def stores(kind: str, folder: Path) -> dict[int, dist.Store]:
    if kind == "file":
        return {r: dist.FileStore(str(folder / "store"), len(RANKS)) for r in RANKS}
    one = dist.HashStore() if kind == "hash" else dist.TCPStore("localhost", 0, 1, True, timeout=timedelta(seconds=30))
    return dict.fromkeys(RANKS, dist.PrefixStore("default", one))


@pytest.mark.parametrize("kind", ["hash", "file", "tcp"])
def test_ranks_meet_again_and_again_and_one_that_is_missing_is_named_by_all(kind, tmp_path, monkeypatch):
    ranks = Ranks(monkeypatch, stores(kind, tmp_path))
    nobody = dict.fromkeys(RANKS, "")

    def often(_: int) -> None:
        for _ in range(5):
            meet(RANKS, "tidec.install", 30.0)

    assert ranks.run(often) == nobody
    # Others have meetings of their own.
    assert ranks.run(lambda r: meet((4, 7), "tidec.install", 30.0), (4, 7)) == {4: "", 7: ""}
    late = "error[F016 absent]: rank 7 did not call tidec.install within 0.3 s\n  help: call tidec.install on every rank, at the same point"
    assert ranks.run(lambda r: meet(RANKS, "tidec.install", 0.3), (4, 6)) == {4: late, 6: late}
    # The one that comes once the others have left learns that they had come.
    found = ranks.run(lambda r: meet(RANKS, "tidec.install", 0.3), (7,))[7]
    assert "ranks 4, 6 did not call tidec.install within 0.3 s" in found and "the ranks that came before have left: rank 7 did not call tidec.install within 0.3 s" in found
    assert ranks.run(often) == nobody


def test_a_meeting_leaves_a_few_bytes(monkeypatch):
    store = dist.HashStore()
    ranks, counts = Ranks(monkeypatch, dict.fromkeys(RANKS, store)), []
    for _ in range(3):
        ranks.run(lambda r: meet(RANKS, "tidec.install", 30.0))
        counts.append(store.num_keys())
    assert counts == [4, 7, 10]


def test_a_rank_that_is_interrupted_while_it_waits_tells_the_others(monkeypatch):
    store = dist.HashStore()
    ranks, others = Ranks(monkeypatch, dict.fromkeys(RANKS, store)), threading.Event()

    def sleep(_: float) -> None:
        if ranks.me == 6:
            others.set()
        elif others.wait(30):
            raise KeyboardInterrupt

    monkeypatch.setattr(meeting, "time", SimpleNamespace(sleep=sleep, monotonic=meeting.time.monotonic))
    found = ranks.run(lambda r: meet(RANKS, "tidec.install", 30.0), (4, 6))
    assert found[4] == "KeyboardInterrupt" and "rank 4 left tidec.install before all had come" in found[6]


def test_nobody_is_waited_for_where_nothing_is_shared(monkeypatch):
    assert Ranks(monkeypatch, {4: Fake()}).run(lambda r: meet(RANKS, "tidec.install", 30.0), (4,)) == {4: ""}
    assert Ranks(monkeypatch, {4: dist.HashStore()}, backend="fake").run(lambda r: meet(RANKS, "tidec.install", 30.0), (4,)) == {4: ""}
    assert Ranks(monkeypatch, {4: None}).run(lambda r: meet(RANKS, "tidec.install", 30.0), (4,)) == {4: ""}
