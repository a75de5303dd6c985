"""What the proofs assume of NCCL and the hardware, numbered. Nothing below this line is proved; each needs a litmus test on a machine."""
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axiom:
    """One assumption: its number, what it says, and where it comes from."""

    id: str
    says: str
    source: str


AXIOMS = (
    Axiom("T1", "a put's data are visible at the receiver before its signal is", "NCCL host RMA: ncclPutSignal"),
    Axiom("T2", "signals of one sender to one receiver over one RMA context arrive in the order of the puts, and so do source completions; over two contexts nothing is said", "NCCL host RMA"),
    Axiom("T3", "ops of one stream that are not in one unordered set complete in order; a wait holds back all later ops of its stream", "CUDA streams and stream memory operations"),
    Axiom("T4", "a counter that a wait sees was raised with everything that its stream did before visible to the waiting rank", "CUDA memory model, system scope"),
    Axiom("T5", "copy-engine and switch accesses obey T3 and T4 like loads and stores do", "CUDA memory model, multimem"),
    Axiom("T6", "all ranks issue the same calls in the same order", "FSDP2's contract"),
    Axiom("T7", "a switch reduction is a fixed function of addresses and topology", "NVSwitch multimem reduction (only where the lowering is nvls)"),
)
