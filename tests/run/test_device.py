"""The current stream of a GPU is changed and put back as torch does it, by the calls that torch makes; no GPU is needed to see which."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tidec.run.device import CPU, Gpu, device_of

FIRST, OTHER = (0, 1, 1), (7, 1, 1)


def stream(key: tuple[int, int, int]) -> SimpleNamespace:
    return SimpleNamespace(stream_id=key[0], device_index=key[1], device_type=key[2], cuda_stream=100 + key[0])


@pytest.fixture
def calls(monkeypatch) -> list:
    """What torch is told; `FIRST` is the current stream of GPU 1."""
    told, current = [], [FIRST]

    def set_stream(*, stream_id, device_index, device_type):
        current[0] = (stream_id, device_index, device_type)
        told.append(current[0])

    monkeypatch.setattr(torch._C, "_cuda_getCurrentStream", lambda index: current[0] if index == 1 else None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 100 + current[0][0] if index == 1 else None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_setStream", set_stream, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", lambda **key: told.append("made") or stream(tuple(key.values())))
    return told


def test_a_stream_is_the_current_one_for_a_block_whatever_ends_it(calls):
    gpu = Gpu(torch.device("cuda", 1))
    with pytest.raises(KeyError), gpu.on(stream(OTHER)):
        assert gpu.stream() == 107
        with gpu.on(stream(OTHER)), gpu.on(None):
            assert gpu.stream() == 107
        raise KeyError
    assert gpu.stream() == 100 and calls == [OTHER, FIRST], "a stream that is the current one is not set again"
    assert gpu.stream(stream(OTHER)) == 107


def test_what_is_waited_for_or_marked_is_of_the_current_stream_or_of_a_given_one(calls, monkeypatch):
    gpu, seen = Gpu(torch.device("cuda", 1)), []

    class Event:
        def record(self, of):
            seen.append(("record", of.cuda_stream))

        def wait(self, of):
            seen.append(("wait", of.cuda_stream))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    mark = gpu.mark()
    gpu.wait(mark)
    gpu.wait(None)
    gpu.wait(gpu.mark(stream(OTHER)), stream(OTHER))
    assert seen == [("record", 100), ("wait", 100), ("record", 107), ("wait", 107)]
    assert calls == ["made"], "torch's object of the current stream is made once"


def test_the_cpu_has_nothing_to_wait_for():
    assert device_of(torch.device("cpu")) is CPU and CPU.mark() is None and CPU.stream() == 0
    with CPU.on(None):
        CPU.wait(None)
