"""Where tensors lie, and what puts work on them in order: streams and marks of a GPU. On the CPU all is in order as it is."""
from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Device:
    """The CPU. is_behind: what is asked of it is done later than the host goes on.  mark: what the current stream holds by now.  wait: the current stream goes on once that is done; `None` = nothing to wait for."""

    of: torch.device

    @property
    def is_behind(self) -> bool:
        return False

    def here(self) -> AbstractContextManager:
        """For a `with` block this device is the current one of its kind."""
        return nullcontext()

    def on(self, stream: torch.Stream | None) -> AbstractContextManager:
        """For a `with` block a stream is the current one."""
        return nullcontext()

    def stream(self) -> int:
        """The current stream, as a node takes it."""
        return 0

    def mark(self) -> torch.Event | None:
        return None

    def wait(self, mark: torch.Event | None) -> None:
        pass

    def synchronize(self) -> None:
        """Wait, on the host, for all that was begun."""


@dataclass(frozen=True, slots=True)
class Gpu(Device):
    """A GPU. Nothing of it waits on the host but `synchronize`."""

    @property
    def is_behind(self) -> bool:
        return True

    def here(self) -> AbstractContextManager:
        return torch.cuda.device(self.of)

    def on(self, stream: torch.Stream | None) -> AbstractContextManager:
        return torch.cuda.stream(stream)

    def stream(self) -> int:
        return torch.cuda.current_stream().cuda_stream

    def mark(self) -> torch.Event | None:
        return torch.cuda.current_stream().record_event()

    def wait(self, mark: torch.Event | None) -> None:
        if mark is not None:
            torch.cuda.current_stream().wait_event(mark)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.of)


CPU = Device(torch.device("cpu"))


def device_of(device: torch.device) -> Device:
    """A device of a kind that some target has."""
    assert device.type in ("cpu", "cuda"), device
    return Gpu(device) if device.type == "cuda" else CPU
