"""How many nodes of how many lanes: the machine a plan is for, from `8x8` or a `tidec.topo/1` file.

M nodes, L lanes, N = M*L ranks, n node, j lane. Rank r = n*L + j.
"""
from __future__ import annotations

import re
import reprlib
import sys
from dataclasses import KW_ONLY, dataclass

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.document import REFERENCE, Document, Member, parse, quoted, read_file

SCHEMA = "tidec.topo/1"
MAX_LANES = 72
MAX_RANKS = 2**31 - 1

_RATES = ("nic_gbps", "push_gbps", "sum_gbps_per_cta", "land_gbps_per_cta", "land_cap_gbps")
_KEYS = ("schema", "nodes", "lanes", "ranks", "rails", *_RATES, "wait_us", "sms", "multicast", "nic_traffic_class", "origin")
MAX_SMS, MAX_TRAFFIC_CLASS = 65535, 255
_SHORT = re.compile(r"([0-9]+)x([0-9]+)")


@dataclass(frozen=True, slots=True)
class Topology:
    """M nodes of L lanes, node-major, every lane on the same rail in every node.

    rails: for each lane the number of its rail, the same on all nodes; empty = 0..L-1. Two lanes may share a rail.
    nic_gbps, push_gbps, sum_gbps_per_cta, land_gbps_per_cta, land_cap_gbps: GB/s; wait_us: microseconds a round of
    signals takes; sms: SMs of a GPU; nic_traffic_class: 0..255. `None` in any of these says one thing: the topology does
    not give it. Rates choose knobs and never enter what is hashed, the traffic class is what a job must
    set; `origin` says where they come from.
    Raises P004 when no plan can be made for it.
    """

    nodes: int
    lanes: int
    _: KW_ONLY
    rails: tuple[int, ...] = ()
    multicast: bool = False
    nic_gbps: float | None = None
    push_gbps: float | None = None
    sum_gbps_per_cta: float | None = None
    land_gbps_per_cta: float | None = None
    land_cap_gbps: float | None = None
    wait_us: float | None = None
    sms: int | None = None
    nic_traffic_class: int | None = None
    origin: str = ""

    def __post_init__(self) -> None:
        assert type(self.nodes) is int and type(self.lanes) is int, (self.nodes, self.lanes)
        if self.nodes < 1 or self.lanes < 1:
            raise _bad(f"a topology of {self.nodes} nodes and {self.lanes} lanes has no rank", help="give at least one node and one lane")
        if self.lanes > MAX_LANES:
            raise _bad(f"{self.lanes} lanes a node are more than {MAX_LANES}", reason=f"no NVLink domain is larger than {MAX_LANES} GPUs",
                       help="lanes are the GPUs of one node; write NODESxLANES")
        if self.nodes * self.lanes > MAX_RANKS:
            raise _bad(f"{self.nodes} nodes of {self.lanes} lanes are more than {MAX_RANKS} ranks", reason="a rank is a signed 32-bit number",
                       help="give fewer nodes")
        if not self.rails:
            object.__setattr__(self, "rails", tuple(range(self.lanes)))
        if len(self.rails) != self.lanes:
            raise _bad(f"{len(self.rails)} rails are given for {self.lanes} lanes", help="give one rail a lane")
        for name in (*_RATES, "wait_us"):
            _check_rate(name, getattr(self, name), is_zero_allowed=name == "wait_us")
        _check_integer("sms", self.sms, 1, MAX_SMS)
        _check_integer("nic_traffic_class", self.nic_traffic_class, 0, MAX_TRAFFIC_CLASS)

    @property
    def ranks(self) -> int:
        """N = M*L."""
        return self.nodes * self.lanes

    def __str__(self) -> str:
        return f"{self.nodes}x{self.lanes}"


def parse_topology(text: str) -> Topology:
    """Read `NODESxLANES`, as in 8x8, or the path of a `tidec.topo/1` JSON file.

    Raises P001 where it is neither, P002 and P003 where the file is malformed, P004 where no plan can be made for it:
    ranks that the lanes do not divide, more than 72 lanes, or a node whose rails are in another order than node 0's.
    """
    short = _SHORT.fullmatch(text)
    if short is None:
        try:
            content = read_file(text)
        except TidecError as error:
            (first,) = error.diagnostics
            if first.code != "P001":
                raise
            raise TidecError(Diagnostic("P001", f"{quoted(text)} is neither NODESxLANES nor a topology file", reason=first.reason,
                                        help="write for example --topo 8x8, or the path of a tidec.topo/1 file")) from error
        return read_topology(content, file=text)
    if max(map(len, short.groups())) > 10:
        raise _bad(f"{quoted(text[:40])} has more than {MAX_RANKS} ranks", reason="a rank is a signed 32-bit number", help="give fewer nodes")
    return Topology(int(short[1]), int(short[2]))


def read_topology(text: str, *, file: str) -> Topology:
    """Read the text of a `tidec.topo/1` file; file: the name to print. Raises P002, P003, P004."""
    document = parse(text, file=file)
    given = document.members(document.root, what="a topology", keys=_KEYS)
    if "schema" in given and given["schema"].node.value != SCHEMA:
        raise document.error("P002", f"the schema of a topology is {quoted(SCHEMA)}", line=given["schema"].line, help=f'write "schema": "{SCHEMA}"')
    nodes, lanes = _extents(document, given)
    known: dict[str, object] = {}
    for key in _RATES:
        if key in given:
            known[key] = document.number(given[key].node, what=key)
    if "wait_us" in given:
        known["wait_us"] = document.number(given["wait_us"].node, what="wait_us", is_zero_allowed=True)
    if "sms" in given:
        known["sms"] = document.integer(given["sms"].node, what="sms", low=1, high=MAX_SMS)
    if "nic_traffic_class" in given:
        known["nic_traffic_class"] = document.integer(given["nic_traffic_class"].node, what="nic_traffic_class", high=MAX_TRAFFIC_CLASS)
    if "multicast" in given:
        known["multicast"] = document.flag(given["multicast"].node, what="multicast")
    if "origin" in given:
        known["origin"] = document.text(given["origin"].node, what="origin")
    try:
        topology = Topology(nodes, lanes, **known)  # type: ignore[arg-type]
    except TidecError as error:
        (first,) = error.diagnostics
        raise document.error(first.code, first.sentence, line=document.root.line, reason=first.reason, help=first.help) from error
    if "rails" in given:
        known["rails"] = _rails(document, given["rails"], nodes, lanes)
        topology = Topology(nodes, lanes, **known)  # type: ignore[arg-type]
    return topology


def _extents(document: Document, given: dict[str, Member]) -> tuple[int, int]:
    """(nodes, lanes) from two or three of nodes, lanes and ranks, which must agree."""
    sizes = {key: document.integer(given[key].node, what=key, low=1, high=MAX_RANKS) for key in ("nodes", "lanes", "ranks") if key in given}
    if len(sizes) < 2:
        raise document.error("P002", "a topology needs two of nodes, lanes and ranks", line=document.root.line,
                             reason=f"it gives {', '.join(sizes) or 'none of them'}", help='write for example "nodes": 8, "lanes": 8', see=REFERENCE)
    if "ranks" not in sizes:
        return sizes["nodes"], sizes["lanes"]
    ranks, unit = sizes["ranks"], "lanes" if "lanes" in sizes else "nodes"
    if ranks % sizes[unit]:
        parts = f"nodes of {sizes[unit]} lanes" if unit == "lanes" else f"{sizes[unit]} nodes"
        raise document.error("P004", f"{ranks} ranks cannot be divided into {parts}", line=given["ranks"].line,
                             reason=f"{ranks} = {ranks // sizes[unit]} * {sizes[unit]} + {ranks % sizes[unit]}",
                             help="every node has the same number of lanes; give the number of ranks that are in use")
    nodes, lanes = (ranks // sizes["lanes"], sizes["lanes"]) if unit == "lanes" else (sizes["nodes"], ranks // sizes["nodes"])
    if sizes.get("nodes", nodes) != nodes:
        raise document.error("P004", f"{sizes['nodes']} nodes of {lanes} lanes are not {ranks} ranks", line=given["ranks"].line,
                             help="leave ranks out, or make it nodes times lanes")
    return nodes, lanes


def _rails(document: Document, member: Member, nodes: int, lanes: int) -> tuple[int, ...]:
    """Node 0's rails, after every node's were seen to be the same: a put from lane j reaches lane j on one rail."""
    per_node = document.items(member.node, what="rails")
    if len(per_node) != nodes:
        raise document.error("P004", f"rails are given for {len(per_node)} nodes, the topology has {nodes}", line=member.line,
                             help="give one array a node, with the rail of each lane")
    first: tuple[int, ...] = ()
    for n, node in enumerate(per_node):
        found = tuple(document.integer(rail, what=f"a rail of node {n}", high=65535) for rail in document.items(node, what=f"rails of node {n}"))
        if len(found) != lanes:
            raise document.error("P004", f"node {n} gives {len(found)} rails for {lanes} lanes", line=node.line, help="give one rail a lane")
        first = found if n == 0 else first
        if found != first:
            raise document.error("P004", f"node {n} has its rails in another order than node 0", line=node.line,
                                 reason=f"node {n} has {_listed(found)}, node 0 has {_listed(first)}; a put from lane j must reach lane j on one rail",
                                 help=f"order the GPUs of node {n} like those of node 0, for example with CUDA_VISIBLE_DEVICES")
    return first


def _listed(rails: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, rails)) + "]"


def _check_rate(name: str, value: object, *, is_zero_allowed: bool) -> None:
    """Raises P004 where a rate is given that is no number that a float holds above zero (or zero, where that is allowed)."""
    bound = "zero or more" if is_zero_allowed else "more than zero"
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 <= value <= sys.float_info.max and (value or is_zero_allowed)):
        raise _bad(f"{name} is {reprlib.repr(value)}, not a number that is {bound}", help=f"give a number that is {bound}, or leave it out")


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    """Raises P004 where a number is given that is no integer from low to high."""
    if value is not None and not (type(value) is int and low <= value <= high):
        raise _bad(f"{name} is {reprlib.repr(value)}, not an integer from {low} to {high}", help=f"give an integer from {low} to {high}, or leave it out")


def _bad(sentence: str, *, reason: str = "", help: str) -> TidecError:
    return TidecError(Diagnostic("P004", sentence, reason=reason, help=help))
