"""The checker's own layout: every number of a plan that follows from its shapes, its knobs and the extents of its buffers, computed again.

M nodes, L lanes, N = M*L ranks; of a parameter: D rows of K values, R = ceil(D/N) rows a rank, n_p = R*K elements, s_p bytes. The landing is
parameter-major: o_p is the sum of the s before p, and rows of rank r begin at o_p*N + r*s_p, so that consecutive o_p make them tile it. The packed
output row is E = the sum of the trainable n_p, cut into n_part*L sub-slices of E_sub (a multiple of 8), each into chunks of C (a multiple of 8).
Source: paper sections 2.1, 4.1 and 4.2; facts/proofs.md section 5.
"""
from __future__ import annotations

from dataclasses import dataclass

from tidec.verify.recheck_index import ORDERING, families, read
from tidec.verify.recheck_theorems import canonical
from tidec.verify.recheck_words import refuted, tampered

ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}
MAX_INT64 = 2**63 - 1
_FP32_BYTES, _SLICE, _REGION = 4, 8, 512
_PACKED = ("shard", "slice", "partial", "row")
_SHAPE = ("name", "rows", "row_elems", "is_trainable", "stored", "gathered")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the checker goes by: the collective, M, L, and the knobs of the program. file: of the plan, for messages."""

    file: str
    collective: str
    nodes: int
    lanes: int
    knobs: dict[str, int | str | bool]
    program: dict

    @property
    def is_gather(self) -> bool:
        return self.collective == "all_gather"

    @property
    def parts(self) -> int:
        """n_part: passes a call."""
        return int(self.knobs.get("n_part", 1))

    @property
    def chunks(self) -> int:
        """Chunks of a sub-slice, `stripes` times as many as one put carries."""
        return int(self.knobs.get("chunks", 1))

    @property
    def stripes(self) -> int:
        return int(self.knobs.get("stripes", 1))

    @property
    def landings(self) -> int:
        """Landings of an all-gather; two are not named."""
        return int(self.knobs.get("landings", 2))

    @property
    def cut(self) -> tuple[int, ...]:
        """Extents of the last two dimensions of blocks that are cut into chunks."""
        return (self.stripes, self.chunks // self.stripes) if self.chunks > 1 else ()

    @property
    def has_cast(self) -> bool:
        return bool(self.knobs.get("cast", False))


def layout_of(plan: dict, facts: Facts) -> dict:
    """What everything in the plan that is a number beside its program should be, by key. Raises V402 where the shapes cannot be, C001."""
    params, shard, packed = _params(plan["params"], facts)
    share = -(-packed // (facts.parts * facts.lanes))
    capacity = _up(share, _SLICE)
    chunk = _up(-(-capacity // facts.chunks), _SLICE)
    bounds = [[[min(i * capacity, packed) for i in (p * facts.lanes + s, p * facts.lanes + s + 1)] for s in range(facts.lanes)] for p in range(facts.parts)]
    item = 0 if facts.is_gather else next(ITEM_BYTES[p["gathered"]] for p in params if p["is_trainable"])
    row = facts.lanes * chunk
    sizes = {"shard": shard, "slice": row * item, "row": row * item, "partial": row * _FP32_BYTES}
    _check_contract(facts)
    return {
        "params": params, "shard_bytes": shard, "packed_elems": packed, "arena": _arena(facts, sizes, facts.nodes * facts.lanes * shard),
        "sub_slices": {"capacity_elems": capacity, "num_chunks": facts.chunks, "chunk_elems": chunk, "bounds": bounds},
    }


def check_layout(plan: dict, layout: dict, facts: Facts) -> None:
    """Raises V402 with the first number of the plan that is not that of `layout_of`."""
    for key, wanted in layout.items():
        # As text, so that true is not taken for 1.
        if canonical(plan[key]) != canonical(wanted):
            at, one, other = _difference(key, plan[key], wanted)
            raise refuted("V402", facts.file, f"{at} is not what the shapes give", reason=f"it says {one!r:.60}, want {other!r:.60}")


def _params(given: list, facts: Facts) -> tuple[list[dict], int, int]:
    """The parameters as they should stand, S in bytes and E in elements."""
    ranks, start, packed, stored = facts.nodes * facts.lanes, 0, 0, 0
    result = []
    for p in given:
        name, rows, width, is_trainable, kept, gathered = (p[key] for key in _SHAPE)
        if type(rows) is not int or type(width) is not int or rows < 0 or width < 0 or type(is_trainable) is not bool or type(name) is not str:
            raise tampered(facts.file, "a parameter has no shape")
        shard_rows = -(-rows // ranks)
        elems = shard_rows * width
        stored = _up(stored, ITEM_BYTES[kept])
        result.append({
            "name": name, "rows": rows, "row_elems": width, "is_trainable": is_trainable, "stored": kept, "gathered": gathered, "shard_rows": shard_rows,
            "shard_elems": elems, "shard_bytes": elems * ITEM_BYTES[gathered], "start_bytes": start, "packed_start": packed, "stored_start": stored,
        })
        start += elems * ITEM_BYTES[gathered]
        stored += elems * ITEM_BYTES[kept]
        packed += elems if is_trainable else 0
        if ranks * max(start, _FP32_BYTES * packed) > MAX_INT64:
            raise refuted("V402", facts.file, f"parameter {name} ends past what 64-bit offsets reach")
    types = {p["gathered"] for p in result if p["is_trainable"] or facts.is_gather}
    if len({p["name"] for p in result}) < len(result) or len(types) != 1:
        raise tampered(facts.file, "two parameters share a name, or their types differ")
    return result, start, packed


def extents(buffer: dict, nodes: int) -> tuple[list[int], list[int]]:
    """The first index and the number of indices of each dimension of a buffer."""
    lows = [read(d["lo"], {"M": nodes}) for d in buffer["dims"]]
    return lows, [max(0, read(d["hi"], {"M": nodes}) - low) for d, low in zip(buffer["dims"], lows)]


def _check_contract(facts: Facts) -> None:
    """What the caller gives and takes is as large as the collective says, whatever the schedule keeps in between."""
    parts, nodes, lanes, cut = facts.parts, facts.nodes, facts.lanes, list(facts.cut)
    wanted = {
        ("input", "shard"): [1], ("output", "placed"): [facts.landings, nodes, lanes], ("input", "grad_slice"): [parts, nodes, lanes, *cut],
        ("output", "out_slice"): [parts, lanes, *cut], ("input", "grad_row"): [parts, lanes, *cut], ("output", "out_row"): [parts, *cut],
    }
    outside = {("input", "shard"), ("output", "placed")} if facts.is_gather else set(wanted) - {("input", "shard"), ("output", "placed")}
    seen = []
    for b in facts.program["buffers"]:
        use = (b["kind"], b["block"])
        if b["kind"] == "temp" and b["block"] in _PACKED:
            continue
        lows, found = extents(b, facts.nodes)
        if use not in outside or any(lows) or found != wanted[use] or any(d["step"] != "by_one" for d in b["dims"]):
            raise refuted("V402", facts.file, f"buffer {b['name']} is not what the collective takes or gives", reason=f"{use[0]} of {use[1]} blocks, {found}")
        seen.append(use)
    if len(seen) != 2 or len(set(seen)) != 2:
        raise refuted("V402", facts.file, "the program has not one input and one output")


def _arena(facts: Facts, sizes: dict[str, int], landing: int) -> dict:
    """The arena as it should stand: landing, resident shard, then every packed buffer, each from a multiple of 512 bytes on, so that none overlap."""
    regions: list[dict] = []

    def place(name: str, b: dict, is_staging: bool, lows: list[int], counts: list[int], strides: list[int]) -> None:
        start = _up(regions[-1]["offset"] + regions[-1]["bytes"], _REGION) if regions else 0
        regions.append({"is": "region", "name": name, "buffer": b["name"], "offset": start, "bytes": strides[0] * counts[0], "is_staging": is_staging,
                        "lows": lows, "extents": counts, "strides": strides})

    buffers = facts.program["buffers"]
    for b in buffers:
        if b["block"] == "placed":
            place("landing", b, False, *extents(b, facts.nodes), [landing])
    for b in buffers:
        if (b["kind"], b["block"]) == ("input", "shard") and not facts.has_cast:
            place("resident_shard", b, False, [0], [1], [sizes["shard"]])
    for b in buffers:
        if b["block"] in _PACKED and b["kind"] != "input":
            lows, counts = extents(b, facts.nodes)
            counts = [0 if d in _idle(facts, b) else count for d, count in enumerate(counts)]
            strides, step = [], sizes[b["block"]]
            for count in reversed(counts):
                strides.insert(0, step)
                step *= count
            place(b["name"], b, b["kind"] == "temp", lows, counts, strides)
    names = [r["name"] for r in regions]
    if len(set(names)) < len(names):
        raise refuted("V402", facts.file, "two regions of the arena share a name")
    end = _up(regions[-1]["offset"] + regions[-1]["bytes"], _REGION) if regions else 0
    if end > MAX_INT64:
        raise refuted("V402", facts.file, "the arena ends past what 64-bit offsets reach")
    return {"is": "arena", "regions": regions, "bytes": end}


def _idle(facts: Facts, buffer: dict) -> set[int]:
    """With one lane: the dimensions that count other lanes, of which there are none, in every read of the buffer."""
    if facts.lanes > 1:
        return set()
    keys = [c["key"] for f in families(facts.program["body"], ORDERING) for c in f.op["reads"] if c["buffer"] == buffer["name"]]
    return {d for d in range(len(buffer["dims"])) if keys and all(key[d] == "others" for key in keys)}


def _up(x: int, step: int) -> int:
    return -(-x // step) * step


def _difference(at: str, found: object, wanted: object) -> tuple[str, object, object]:
    """Where two values differ first."""
    if isinstance(found, dict) and isinstance(wanted, dict) and found.keys() == wanted.keys():
        pairs = [(f"{at}.{key}", found[key], wanted[key]) for key in sorted(wanted)]
    elif isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        pairs = [(f"{at}[{i}]", a, b) for i, (a, b) in enumerate(zip(found, wanted))]
    else:
        return at, found, wanted
    return next((_difference(*p) for p in pairs if canonical(p[1]) != canonical(p[2])), (at, found, wanted))
