"""How fast the parts of a machine are: what its topology gives, and where it gives nothing a rate that was measured, with its origin.

M nodes, L lanes. Rates are exact fractions, so that whatever is decided by them is decided alike on every machine. GB/s are 10^9 bytes a second.
"""
from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from tidec.inputs.knobs import MAX_CTAS
from tidec.inputs.topology import Topology

PAPER = "the paper's platform, appendix G"
PAPER_CHIP = "the paper's platform, section 2.2"
H200 = "measured on a pair of H200s"
H200_KERNELS = "measured on an H200: 8 CTAs, two lanes in bf16, examples/measure/results/kernels.json"

# Streaming multiprocessors of a chip, and CTAs of one kernel beside which a GEMM of one wave stays one wave.
# 132: eight such CTAs slow the GEMM by 4 to 6 percent, sixteen by 39 (H200, measured). 148: 33 clusters of four leave 16 outside (paper, section 2.2).
_SPARE_CTAS = {132: 8, 148: 16}
# An unknown chip: the smaller one of the two shares above, rounded down.
_SMS_A_SPARE_CTA = 16


@dataclass(frozen=True, slots=True)
class Rate:
    """One number, more than nothing except for a wait. origin: in words.  is_given: whether the topology says it."""

    value: Fraction
    origin: str
    is_given: bool


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine does in a second, and what a round costs.

    nic_gbps: a rail, one way; on one node there is none, and it is the push rate.  push_gbps: a copy engine to another lane.
    sum_gbps_per_cta: of a sum kernel, read and written together.  land_gbps_per_cta, land_cap_gbps: of output that a landing kernel makes, and its ceiling.
    wait_us: of one network round.  meeting_us: of two lanes, once.  sms: streaming multiprocessors of a GPU.
    """

    nic_gbps: Rate
    push_gbps: Rate
    sum_gbps_per_cta: Rate
    land_gbps_per_cta: Rate
    land_cap_gbps: Rate
    wait_us: Rate
    meeting_us: Rate
    sms: Rate

    @property
    def spare_ctas(self) -> int:
        """CTAs of a kernel in the background beside which a GEMM that fills the chip in one wave still does; no more than a kernel has."""
        sms = int(self.sms.value)
        return _SPARE_CTAS.get(sms, min(MAX_CTAS, max(1, sms // _SMS_A_SPARE_CTA)))


# name: (of one node, of several), each a value in thousandths and where it comes from.
_DEFAULTS = {
    "push_gbps": ((395_000, H200), (395_000, H200)),
    "sum_gbps_per_cta": ((98_000, H200_KERNELS), (99_000, PAPER)),
    "land_gbps_per_cta": ((21_000, PAPER), (21_000, PAPER)),
    "land_cap_gbps": ((90_000, PAPER), (90_000, PAPER)),
    "wait_us": ((1_300_000, PAPER), (1_300_000, PAPER)),
    "sms": ((132_000, H200), (148_000, PAPER_CHIP)),
}
_NIC = Rate(Fraction(95, 2), PAPER, False)
_MEETING = Rate(Fraction(38, 5), H200, False)


def rates_of(topology: Topology) -> Rates:
    """The rates of a topology: given ones, and defaults of one node (two H200s) or of several (the paper's eight nodes)."""
    found = {name: _rate(topology, name, of_one if topology.nodes == 1 else of_several) for name, (of_one, of_several) in _DEFAULTS.items()}
    push = found["push_gbps"]
    if topology.nodes == 1:
        nic = Rate(push.value, f"the push rate, as one node has no rail; {push.origin}", push.is_given)
    elif topology.nic_gbps is None:
        nic = _NIC
    else:
        nic = _given(topology, topology.nic_gbps)
    return Rates(nic_gbps=nic, meeting_us=_MEETING, **found)


def _rate(topology: Topology, name: str, default: tuple[int, str]) -> Rate:
    given = getattr(topology, name)
    return Rate(Fraction(default[0], 1000), default[1], False) if given is None else _given(topology, given)


def _given(topology: Topology, number: float) -> Rate:
    # NOTE: by its decimal digits, as the file has them; the binary number beside 47.6 is another fraction.
    return Rate(Fraction(str(number)), topology.origin or "given", True)
