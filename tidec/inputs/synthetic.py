"""Made-up groups, given by how many parameters they have and how many bytes a rank holds of them: equal ones, and a mix as in a Llama block.

Parameters are matrices of bf16 that have as many rows on every rank, so nothing is padded. A rank's shard is as near to the bytes that are asked for as
whole rows allow.
"""
from __future__ import annotations

import re

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.ask import MAX_TRAINABLE
from tidec.inputs.document import quoted
from tidec.inputs.signature import Dtype, Group, Parameter

_ITEM_BYTES = Dtype.BF16.item_bytes
_MAX_COLUMNS, _MAX_BYTES = 2048, 2**40
_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# Rows of 4096 values that each parameter of a Llama-3.1-8B block has, in FSDP2's order: four of attention, three of the MLP, two norms.
_LLAMA = (4096, 1024, 1024, 4096, 14336, 14336, 14336, 1, 1)
# Rows that a parameter has on the average at least, so that the proportions show.
_FINEST = 32


def equal_groups(text: str, *, ranks: int) -> tuple[Group, ...]:
    """Groups of P equal parameters. text: P:BYTES with commas between, as in 30:128MiB,30:8MiB; BYTES of a rank's shard of the group. Raises P001."""
    groups = []
    for asked, count, num_bytes in _read(text, "--equal"):
        elems = num_bytes // _ITEM_BYTES // count
        columns = min(_MAX_COLUMNS, elems)
        groups.append(_group(f"equal{asked}", [elems // columns] * count, columns, ranks))
    return tuple(groups)


def unequal_groups(text: str, *, ranks: int) -> tuple[Group, ...]:
    """Groups of P parameters whose sizes are in the proportions of a Llama block's, block after block; the same text. Raises P001."""
    groups = []
    for asked, count, num_bytes in _read(text, "--unequal"):
        weights = [_LLAMA[i % len(_LLAMA)] for i in range(count)]
        elems, norms, others = num_bytes // _ITEM_BYTES, weights.count(1), sum(w for w in weights if w > 1)
        columns = max(1, min(_MAX_COLUMNS, elems // (_FINEST * count)))
        rows = [1 if w == 1 else max(1, (elems // columns - norms) * w // others) for w in weights]
        groups.append(_group(f"unequal{asked}", rows, columns, ranks))
    return tuple(groups)


def _read(text: str, option: str) -> list[tuple[str, int, int]]:
    """What is asked for, P and bytes, one a group."""
    found = []
    for asked in map(str.strip, text.split(",")):
        said = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,15})(B|KiB|MiB|GiB|)", asked)
        count, num_bytes = (int(said[1]), int(said[2]) * _UNITS[said[3]]) if said else (0, 0)
        if not (1 <= count <= MAX_TRAINABLE and count * _ITEM_BYTES <= num_bytes <= _MAX_BYTES):
            raise TidecError(Diagnostic(
                "P001", f"{option} has {quoted(asked)}", reason=f"it takes P:BYTES, 1..{MAX_TRAINABLE} parameters and the bytes of a rank's shard of them, at most 1024GiB, {_ITEM_BYTES} a parameter at least",
                help=f"write for example {option} 30:128MiB,30:8MiB"))
        found.append((asked, count, num_bytes))
    return found


def _group(name: str, rows: list[int], columns: int, ranks: int) -> Group:
    """rows: of each parameter, on every rank."""
    return Group(name.replace(":", "-"), 1, tuple(Parameter(f"p{i}", (ranks * num, columns), Dtype.BF16) for i, num in enumerate(rows)))
