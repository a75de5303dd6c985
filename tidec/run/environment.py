"""The environment that plans on GPUs need, set before the first communicator of a job is made.

NCCL gives the queue pairs that GPUs drive a traffic class of their own, 0 where nothing is said, which on a lossless network is the lossy one. So they
get the class of the host's. Where that is not known nothing is set: plans move over the host's queue pairs only.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidec.errors import Diagnostic, Level
from tidec.inputs.document import quoted

HOST_CLASS, GPU_CLASS = "NCCL_IB_TC", "NCCL_GIN_IB_TC"
# What a process reads when it first uses a GPU, and not again.
_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


@dataclass(frozen=True, slots=True)
class Settings:
    """values: what to set, name and value.  notes: a warning for each variable that somebody has set to another value, which stays."""

    values: tuple[tuple[str, str], ...]
    notes: tuple[Diagnostic, ...]


def settings(needed: tuple[tuple[str, str], ...], environment: Mapping[str, str], *, has_begun: bool = False) -> Settings:
    """What to set of what a bundle needs (`Bundle.environment`), over the environment of the job. has_begun: this process uses a GPU already.

    Guaranteed: nothing that is set already is changed. Source: paper appendices E and G.
    """
    wanted = dict(needed)
    host = environment.get(HOST_CLASS, wanted.get(HOST_CLASS, ""))
    if host:
        wanted[GPU_CLASS] = host
    values = tuple((name, value) for name, value in sorted(wanted.items()) if not environment.get(name))
    notes = tuple(_other(name, environment[name], value) for name, value in sorted(wanted.items()) if environment.get(name, value) not in ("", value))
    late = tuple(_late(name, value) for name, value in values if has_begun and name == _QUEUES)
    return Settings(values, (*notes, *late))


def _other(name: str, found: str, value: str) -> Diagnostic:
    return Diagnostic("E007", f"{name} is {quoted(found)}, and these plans need {value}", reason=_REASONS.get(name, ""), help=f"unset it, or set {name}={value}", level=Level.WARNING)


def _late(name: str, value: str) -> Diagnostic:
    return Diagnostic("E007", f"{name} was not set when this process began to use its GPU, and these plans need {value}", reason=_REASONS[name],
                      help=f"start the job with {name}={value}", level=Level.WARNING)


_REASONS = {
    _QUEUES: "with fewer hardware queues a wait of the network phase holds up reads that stand behind it",
    HOST_CLASS: "the topology says which class its network does not drop",
    GPU_CLASS: "what GPUs send would ride another priority than what the host sends, and may stall when the network is full",
}
