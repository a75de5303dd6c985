"""Ends a process whose collectives on a GPU do not end: nothing else can, since the host waits in the driver for a stream that waits for another rank.

Calls are enqueued and the host goes on, so no call can tell that a rank is missing. A thread looks now and then at what was begun, and at what the ranks
said on their board; where a call is not over at its deadline, or ranks do different things, it says so and ends this process, as the watchdog of torch's
NCCL process groups does. What the GPU would go on with would be wrong.
"""
from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

from tidec.errors import Diagnostic, TidecError
from tidec.run.agree import Board

# How often the thread looks.
_PERIOD_S = 0.5


def end_process(problem: TidecError) -> None:
    """Say why, and end this process."""
    print(problem, file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGABRT)


class Watch:
    """Calls that were begun, and until when they have to be over. end: what is done about one that is not."""

    def __init__(self, board: Board, deadline_s: float, *, end: Callable[[TidecError], None] = end_process, period_s: float = _PERIOD_S):
        self._board, self._deadline_s, self._end, self._period_s = board, deadline_s, end, period_s
        # Marks of calls, each with its deadline and what it is.
        self._open: deque[tuple[object, float, str]] = deque()
        self._checked = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidec-watch", daemon=True)
        self._thread.start()

    def add(self, mark: object, what: str) -> None:
        """A call that is over once its mark is."""
        self._open.append((mark, time.monotonic() + self._deadline_s, what))

    def look(self) -> None:
        """Drop what is over. Raises R001 where something is not and should be, F012 where ranks do different things."""
        while self._open and self._open[0][0].query():
            self._open.popleft()
        self._checked = self._board.check_from(self._checked)
        if self._open and time.monotonic() > self._open[0][1]:
            raise TidecError(Diagnostic("R001", f"{self._open[0][2]} is not over after {self._deadline_s:.0f} s", reason="; ".join(self._board.where()),
                                        help="look at the rank that is missing or silent; this process ends, since its GPU waits for it"))

    def stop(self) -> None:
        """Look at nothing from the next time on."""
        self._is_over.set()

    def close(self) -> None:
        """Nothing is looked at any more."""
        self.stop()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(self._period_s):
            try:
                self.look()
            except TidecError as problem:
                self._end(problem)
                return
