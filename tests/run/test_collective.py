"""On a device whose streams run behind the host, what a ring and a reducer ask for is in the order that memory needs, whatever streams call them.

A stream is its number and a clock: how much of every stream comes before what it is asked next. What is asked is noted with the clock it has then.
"""
from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch

from tidec.inputs.ask import Ask, Collective
from tidec.inputs.capability import Lowering
from tidec.inputs.knobs import Knobs
from tidec.inputs.signature import Dtype, Group, Parameter
from tidec.inputs.topology import parse_topology
from tidec.plan.ir import Plan
from tidec.plan.lower import lower
from tidec.run import collective
from tidec.run.collective import Place, Reducer, Ring
from tidec.run.count import Account, planned

def plan_of(of: Collective, landings: int = 2) -> Plan:
    return lower(Ask(parse_topology("1x2"), Group("g", 1, (Parameter("p", (2,), Dtype.FP32),), landings=landings), Lowering.P2P, Knobs(W=2, k=1)), of)


COMPUTE, PACKING, MOVING, REDUCING = "compute", "packing", "moving", "reducing"


@dataclass
class Behind:
    """A device with streams that are clocks."""

    of: torch.device = torch.device("cpu")
    current: str = COMPUTE
    clocks: dict[str, dict[str, int]] = field(default_factory=dict)
    done: dict[str, tuple[str, dict[str, int]]] = field(default_factory=dict)
    is_behind = True

    @contextmanager
    def on(self, stream):
        before, self.current = self.current, stream or self.current
        yield
        self.current = before

    def stream(self, of=None):
        return of or self.current

    def mark(self, stream=None):
        return dict(self.clocks.get(stream or self.current, {}))

    def wait(self, mark, stream=None):
        clock = self.clocks.setdefault(stream or self.current, {})
        for stream, count in (mark or {}).items():
            clock[stream] = max(clock.get(stream, 0), count)

    def ask(self, what: str, stream: str) -> None:
        """Something is asked of a stream; its name is given once."""
        assert what not in self.done, what
        clock = self.clocks.setdefault(stream, {})
        clock[stream] = clock.get(stream, 0) + 1
        self.done[what] = (stream, dict(clock))

    def is_before(self, one: str, other: str) -> bool:
        stream, clock = self.done[one]
        return self.done[other][1].get(stream, 0) >= clock[stream]


class Node:
    """Notes what is asked, on which stream. It has the landings of its plan, of 64 bytes each."""

    def __init__(self, device: Behind, plan: Plan):
        self.device, self.plan, self.memory = device, plan, torch.zeros(plan.arena.bytes, dtype=torch.uint8)

    def arena(self):
        return self.memory.data_ptr(), self.plan.arena.bytes

    def gather(self, call, shard, stream):
        self.device.ask(f"gather {call}", stream)

    def acquire(self, call, stream):
        self.device.ask(f"acquire {call}", stream)
        return self.memory.data_ptr() + (call % self.plan.landings) * self.plan.layout.landing_bytes

    def release(self, call, stream):
        self.device.ask(f"release {call}", stream)

    def reduce(self, call, gradients, out, alpha, accumulate, stream):
        self.device.ask(f"reduce {call}", stream)

    def counts(self, call):
        tally = planned(self.plan, 0, call)
        return [*tally.ops, *tally.bytes]


class Packed:
    """Stands for a shard: packing is asked of the current stream."""

    device: Behind
    calls = made = 0

    def __init__(self, *_: object, **__: object):
        self.address = 64
        type(self).made += 1

    def pack(self, shards):
        type(self).device.ask(f"pack {type(self).calls}", type(self).device.current)
        type(self).calls += 1


@pytest.fixture(params=[2])
def ring(request, monkeypatch) -> tuple[Behind, Ring, Account]:
    """param: landings."""
    device, plan = Behind(), plan_of(Collective.ALL_GATHER, request.param)
    monkeypatch.setattr(Packed, "device", device, raising=False)
    monkeypatch.setattr(Packed, "calls", 0)
    monkeypatch.setattr(Packed, "made", 0)
    monkeypatch.setattr(collective, "Shard", Packed)
    return device, Ring(plan, Node(device, plan), rank=0, place=Place(device)), Account()


def gather(ring: Ring, account: Account) -> int:
    return ring.gather([], account, packing=PACKING, moving=MOVING)[0]


def use(ring: Ring, device: Behind, call: int) -> None:
    ring.acquire(call)
    device.ask(f"read {call}", COMPUTE)
    ring.let_go(call)


def test_a_shard_is_packed_before_it_is_moved_and_moved_before_it_is_packed_again(ring):
    """Each call is begun while the one before it is in use, as FSDP2 does with equal blocks: two shards, in turn."""
    device, ring, account = ring
    gather(ring, account)
    for call in range(5):
        ring.acquire(call)
        gather(ring, account)
        use(ring, device, call)
    assert Packed.made == 2
    for call in range(5):
        assert device.is_before(f"pack {call}", f"gather {call}") and device.is_before(f"read {call}", f"release {call}")
        assert call < 2 or device.is_before(f"acquire {call - 2}", f"pack {call}")
    assert not device.is_before("acquire 3", "pack 4"), "a call may begin before the one before it is through"
    assert account.calls == 5 and account.done == account.planned


@pytest.mark.parametrize("ring", [1], indirect=True)
def test_with_one_landing_a_ring_is_full_until_it_is_let_go(ring):
    device, ring, account = ring
    for call in range(3):
        assert not ring.is_full and ring.is_next_bank_of(call - 1)
        gather(ring, account)
        assert ring.is_full
        use(ring, device, call)
        assert call < 1 or device.is_before(f"acquire {call - 1}", f"pack {call}")
    assert Packed.made == 1 and account.calls == 3 and account.done == account.planned


@pytest.mark.parametrize("ring", [1, 2], indirect=True)
def test_calls_of_which_none_is_begun_before_the_last_one_is_over_have_one_shard(ring):
    """A group that is alone on its plan, as the root is."""
    device, ring, account = ring
    for call in range(5):
        gather(ring, account)
        use(ring, device, call)
        assert call < 1 or device.is_before(f"acquire {call - 1}", f"pack {call}")
        assert device.is_before(f"pack {call}", f"gather {call}")
    assert Packed.made == 1 and account.calls == 5 and account.done == account.planned


def test_who_takes_a_landing_on_another_stream_waits_for_it(ring):
    """Two calls are begun, and the later one is wanted first."""
    device, ring, account = ring
    for _ in range(2):
        gather(ring, account)
    ring.acquire(1)
    assert device.done["acquire 0"][0] == device.done["acquire 1"][0] == COMPUTE
    with device.on("another"):
        ring.acquire(0)
        device.ask("read 0", "another")
    assert device.is_before("acquire 0", "read 0")


def test_a_landing_that_is_let_go_early_is_released_after_all_who_read_it(ring):
    """The later call is read on one stream and let go first; the earlier one is let go on another stream, as one whose gradients lay in its landing is."""
    device, ring, account = ring
    for call in range(2):
        gather(ring, account)
        ring.acquire(call)
    device.ask("read 1", COMPUTE)
    ring.let_go(1)
    assert ring.is_full and "release 1" not in device.done
    device.ask("read 0", COMPUTE)
    with device.on(REDUCING):
        device.wait(None)
        ring.let_go(0)
    assert device.done["release 0"][0] == device.done["release 1"][0] == REDUCING
    assert device.is_before("read 1", "release 1")
    assert not ring.is_full and account.calls == 2


def test_a_call_that_goes_on_is_told_with_its_mark():
    device, told = Behind(), []
    plan = plan_of(Collective.REDUCE_SCATTER)
    reducer = Reducer(plan, Node(device, plan), rank=0, place=Place(device, begun=lambda mark, what: told.append((mark, what))))
    with device.on(REDUCING):
        reducer.reduce({0: 64}, torch.empty(1), 1.0, Account())
    assert device.done["reduce 0"][0] == REDUCING and told == [({REDUCING: 1}, f"reduce-scatter 0 of plan {plan.digest[:12]}")]
