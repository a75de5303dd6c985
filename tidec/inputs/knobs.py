"""The numbers that may be set: their names, ranges and defaults, and what one run was given.

M nodes, L lanes, W wave width.
"""
from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from typing import Sequence

from tidec.errors import Diagnostic, TidecError
from tidec.inputs.document import nearest, quoted

NAMES = ("W", "k", "n_stg", "n_part", "n_out", "chunk_bytes", "chunks", "stripes", "ctas_sum", "ctas_land", "cast", "pacing")

_MAX_OUTBOX = 2**31 - 1
MAX_PARTS, MAX_CHUNKS, MAX_STRIPES, MAX_CTAS, CHUNK_ALIGNMENT_ELEMS = 4, 256, 8, 1024, 8
_RANGES = {
    "k": (1, 32), "n_stg": (1, 8), "n_part": (1, MAX_PARTS), "stripes": (1, MAX_STRIPES), "chunk_bytes": (0, 2**40), "chunks": (1, MAX_CHUNKS),
    "ctas_sum": (1, MAX_CTAS), "ctas_land": (1, MAX_CTAS),
}
# NOTE: these can be set to one value only, because no plan reads them yet; a row goes when a plan does.
_NOT_BUILT = {"pacing": False}


class Full(Enum):
    """An outbox with a block for every remote node, M-1 of them."""

    FULL = "full"

    def __str__(self) -> str:
        return self.value


FULL = Full.FULL


@dataclass(frozen=True, slots=True)
class Knobs:
    """One value a knob.

    W: contributors a wave, 1..L.  k: rail transfers a round, 1..32; a plan runs min(k, W, M-1) of them.
    n_stg: local staging slots.  n_part: passes a call.  n_out: outbox blocks a bank, or FULL.
    chunk_bytes: of a staging slot; 0 = a block is one chunk.  chunks: of a block; 0 = as many as chunk_bytes makes.
    stripes: puts a block is split into, each over its own RMA context; a block has as many chunks, or a multiple.
    ctas_sum, ctas_land: CTAs of the sum and landing kernels; they change no plan.
    cast: whether the all-gather casts into its stage; `None` (not set) = as the group's types need. `Ask` settles it.
    pacing: whether a round of the all-gather waits for the one before to be confirmed.
    """

    W: int
    k: int
    _: KW_ONLY
    n_stg: int = 2
    n_part: int = 1
    n_out: int | Full = FULL
    chunk_bytes: int = 0
    chunks: int = 0
    stripes: int = 1
    ctas_sum: int = 4
    ctas_land: int = 4
    cast: bool | None = None
    pacing: bool = False


def default_knobs(lanes: int) -> Knobs:
    """What holds where nothing is chosen for a group: W = L, k = min(4, W), a full outbox, two staging slots, one pass, one chunk, one stripe."""
    return Knobs(lanes, min(4, lanes))


@dataclass(frozen=True, slots=True)
class Settings:
    """What was set of the knobs, by name and in the order of `NAMES`; the solver chooses the rest for each group."""

    values: tuple[tuple[str, int | bool | Full], ...] = ()

    def __contains__(self, name: str) -> bool:
        return any(own == name for own, _ in self.values)

    def over(self, base: Knobs) -> Knobs:
        """The knobs with what was set in the place of what they had."""
        return replace(base, **dict(self.values))  # type: ignore[arg-type]


NOTHING_SET = Settings()


def read_settings(settings: Sequence[str], lanes: int) -> Settings:
    """Read settings such as ("W=4", "n_out=full"). lanes: L.

    Raises P006 for an unknown name, one set twice, a value out of range, chunks beside chunk_bytes, and for another value than the
    default of a knob that no plan reads yet.
    """
    given: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if name not in NAMES:
            raise _bad(f"there is no knob {quoted(name)}", help=f"did you mean {nearest(name, NAMES)}?  the knobs are {', '.join(NAMES)}")
        if not equals or not value:
            raise _bad(f"knob {name} is given no value", help=f"write --set {name}=VALUE")
        if name in given:
            raise _bad(f"knob {name} is set twice, to {given[name]} and to {value}", help="set it once")
        given[name] = value
    values = {name: _value(name, text, lanes) for name, text in given.items()}
    for name, only in _NOT_BUILT.items():
        if name in values and values[name] != only:
            raise _bad(f"knob {name} cannot be set to {given[name]}", reason="no plan reads this knob yet", help=f"leave {name} out, or write {name}={_spelt(only)}")
    if "chunks" in values and "chunk_bytes" in values:
        raise _bad("chunks and chunk_bytes are both set", reason="each says how large a chunk is", help="set one of them")
    return Settings(tuple((name, values[name]) for name in NAMES if name in values))


def parse_knobs(settings: Sequence[str], lanes: int, *, defaults: Knobs | None = None, nodes: int | None = None) -> Knobs:
    """Read settings over the defaults: all knobs without a solver, for a claim about every group or every M.

    lanes: L.  defaults: what holds where nothing is set; `None` = `default_knobs`.
    nodes: M; `None` = any, as in a claim for every M.
    A k that is not set follows a W that is, and an n_out that is not set is never too small for them.
    Raises P006 as `read_settings` does, and for an n_out below min(k, W, M-1): the rounds would wait for each other.
    """
    found = read_settings(settings, lanes)
    knobs = found.over(defaults or default_knobs(lanes))
    if knobs.W > lanes:
        knobs = replace(knobs, W=lanes)
    if "k" not in found:
        knobs = replace(knobs, k=min(knobs.k, knobs.W))
    least = least_outbox(knobs, nodes)
    if isinstance(knobs.n_out, int) and knobs.n_out < least:
        if "n_out" in found:
            raise too_small_outbox(knobs, nodes)
        knobs = replace(knobs, n_out=least)
    return knobs


def least_outbox(knobs: Knobs, nodes: int | None) -> int:
    """The fewest outbox blocks with which rounds cannot wait for each other: min(k, W, M-1); `None` nodes = any M."""
    width = min(knobs.k, knobs.W)
    return width if nodes is None else min(width, nodes - 1)


def too_small_outbox(knobs: Knobs, nodes: int | None) -> TidecError:
    """The refusal of an outbox that holds fewer blocks than a round sends."""
    terms = f"min(k, W) = min({knobs.k}, {knobs.W})" if nodes is None else f"min(k, W, M-1) = min({knobs.k}, {knobs.W}, {nodes - 1})"
    return _bad(f"n_out={knobs.n_out} is below {terms} = {least_outbox(knobs, nodes)}",
                reason="a round would wait for a block that only its own end frees", help="write n_out=full, or a larger number")


def num_chunks(knobs: Knobs, *, row_elems: int = 0, row_item_bytes: int = 1) -> int:
    """How many chunks a block is cut into: at least as many as stripes, a multiple of them, and at most MAX_CHUNKS.

    row_elems: E_sub, elements of a row of the block.  row_item_bytes: of one element of all its rows, L times that of a gradient's value.
    Both are 0 and 1 where no group is given. Raises P006 where chunks, or chunk_bytes, makes more than MAX_CHUNKS of them.
    """
    most = MAX_CHUNKS // knobs.stripes * knobs.stripes
    count = max(1, knobs.chunks)
    if knobs.chunk_bytes:
        chunk_elems = max(CHUNK_ALIGNMENT_ELEMS, knobs.chunk_bytes // row_item_bytes // CHUNK_ALIGNMENT_ELEMS * CHUNK_ALIGNMENT_ELEMS)
        count = max(1, -(-row_elems // chunk_elems))
    rounded = -(-count // knobs.stripes) * knobs.stripes
    if rounded <= most:
        return rounded
    if not knobs.chunk_bytes:
        raise _bad(f"{count} chunks in {knobs.stripes} equal stripes are {rounded}, more than {MAX_CHUNKS}", help=f"write chunks={most} or fewer, or another number of stripes")
    striped = f" in {knobs.stripes} stripes" if knobs.stripes > 1 else ""
    raise _bad(f"chunk_bytes={knobs.chunk_bytes} cuts a block of {row_elems * row_item_bytes:,} bytes into {rounded:,} chunks{striped}, more than {MAX_CHUNKS}",
               help=f"write chunk_bytes={-(-row_elems // (most * CHUNK_ALIGNMENT_ELEMS)) * CHUNK_ALIGNMENT_ELEMS * row_item_bytes} or more")


def _value(name: str, text: str, lanes: int) -> int | bool | Full:
    if name == "n_out" and text == FULL.value:
        return FULL
    if name == "pacing":
        if text not in ("on", "off"):
            raise _bad(f"knob pacing is {quoted(text)}", help="write pacing=on or pacing=off")
        return text == "on"
    if name == "cast":
        if text not in ("0", "1"):
            raise _bad(f"knob cast is {quoted(text)}", help="write cast=0 or cast=1")
        return text == "1"
    low, high = (1, lanes) if name == "W" else (1, _MAX_OUTBOX) if name == "n_out" else _RANGES[name]
    wanted = f"1..L = 1..{lanes}" if name == "W" else f"{low}..{high}"
    if not (text.isascii() and text.isdigit() and len(text) <= 15 and low <= int(text) <= high):
        wanted = "full or a number from 1" if name == "n_out" else wanted
        raise _bad(f"knob {name} is {quoted(text)}, not {wanted}", help=f"write {name}=N with N in {wanted}" if name != "n_out" else "write n_out=full or n_out=N")
    return int(text)


def _spelt(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _bad(sentence: str, *, reason: str = "", help: str) -> TidecError:
    return TidecError(Diagnostic("P006", sentence, reason=reason, help=help))
