"""Which way data moves inside a node: copies between lanes, or the switch's multicast and sums."""
from __future__ import annotations

from enum import Enum

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.document import quoted
from tidec.inputs.topology import Topology


class Lowering(Enum):
    """How node-wide moves are carried out; written in the plan.

    P2P: one copy a lane, sums in the order written.  NVLS: one multicast copy, sums in the switch.
    """

    P2P = "p2p"
    NVLS = "nvls"


def choose_lowering(topology: Topology, asked: str | None = None) -> Lowering:
    """The lowering that was asked for; `None` (nothing was asked) gives NVLS where the topology has multicast, else P2P.

    Raises P001 where the name asked for is none.
    """
    if asked is None:
        return Lowering.NVLS if topology.multicast else Lowering.P2P
    for lowering in Lowering:
        if asked == lowering.value:
            return lowering
    raise TidecError(Diagnostic("P001", f"there is no capability {quoted(asked)}", help="write --capability p2p or --capability nvls"))
