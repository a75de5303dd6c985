"""Where tensors lie, and what puts work on them in order: streams and marks of a GPU. On the CPU all is in order as it is."""
from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True)
class Device:
    """The CPU. is_behind: what is asked of it is done later than the host goes on.

    mark: what a stream holds by now.  wait: a stream goes on once that is done; `None` = nothing to wait for.  Where no stream is given it is the current one.
    """

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

    def stream(self, of: torch.Stream | None = None) -> int:
        """A stream, as a node takes it."""
        return 0

    def mark(self, stream: torch.Stream | None = None) -> torch.Event | None:
        return None

    def wait(self, mark: torch.Event | None, stream: torch.Stream | None = None) -> None:
        pass

    def synchronize(self) -> None:
        """Wait, on the host, for all that was begun."""


class _Current:
    """What `torch.cuda.stream` does, at a fifth of its cost: it is entered several times a collective, by a host that is behind its GPU or just ahead of it."""

    __slots__ = ("_stream", "_before")

    def __init__(self, stream: torch.cuda.Stream):
        self._stream = (stream.stream_id, stream.device_index, stream.device_type)

    def __enter__(self) -> None:
        self._before = torch._C._cuda_getCurrentStream(self._stream[1])
        if self._before != self._stream:
            _set_current(self._stream)

    def __exit__(self, *_: object) -> None:
        if self._before != self._stream:
            _set_current(self._before)


def _set_current(stream: tuple[int, int, int]) -> None:
    torch._C._cuda_setStream(stream_id=stream[0], device_index=stream[1], device_type=stream[2])


@dataclass(frozen=True, slots=True)
class Gpu(Device):
    """A GPU. Nothing of it waits on the host but `synchronize`. _known: torch's object of every stream that was the current one, by its three numbers."""

    _known: dict[tuple[int, int, int], torch.cuda.Stream] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_behind(self) -> bool:
        return True

    def here(self) -> AbstractContextManager:
        return torch.cuda.device(self.of)

    def on(self, stream: torch.Stream | None) -> AbstractContextManager:
        return nullcontext() if stream is None else _Current(stream)

    def stream(self, of: torch.Stream | None = None) -> int:
        return torch._C._cuda_getCurrentRawStream(self.of.index) if of is None else of.cuda_stream

    def mark(self, stream: torch.Stream | None = None) -> torch.Event | None:
        event = torch.cuda.Event()
        event.record(self._current() if stream is None else stream)
        return event

    def wait(self, mark: torch.Event | None, stream: torch.Stream | None = None) -> None:
        if mark is not None:
            mark.wait(self._current() if stream is None else stream)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.of)

    def _current(self) -> torch.cuda.Stream:
        key = torch._C._cuda_getCurrentStream(self.of.index)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = torch.cuda.Stream(stream_id=key[0], device_index=key[1], device_type=key[2])
        return found


CPU = Device(torch.device("cpu"))


def device_of(device: torch.device) -> Device:
    """A device of a kind that some target has. A GPU without a number is the current one."""
    assert device.type in ("cpu", "cuda"), device
    return CPU if device.type == "cpu" else Gpu(device if device.index is not None else torch.device("cuda", torch.cuda.current_device()))
