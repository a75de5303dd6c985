"""What `tidec explain WORD` says of a knob or of a word of the glossary.

The glossary stands in README too, row by row.
"""
from __future__ import annotations

NOT_BUILT = "Not built: no plan reads it yet, and only its default is accepted."

# M nodes, L lanes. One paragraph a knob: what it is, its range and default, and what it changes.
KNOBS = {
    "W": "The wave width: how many contributors of a reduce-scatter land together. 1..L, default L. A larger W makes fewer waves, ceil(M/W) a pass, and each "
         "makes the lanes of a node meet twice; the inbox is as large for every W. A W that divides L is proved for every node count. Another W is "
         "proved where (M - 1) % W <= (M - 1) % L, because elsewhere two contributors of the last wave meet in one block; compile refuses such a node count (P013).",
    "k": "The size of a round: how many puts a rank of a reduce-scatter has in flight before it waits for as many to arrive. 1..32; default, for each group: two, "
         "or four where rounds would cost a tenth of the time on the wire. A plan runs min(k, W, M-1) of them. A larger k makes fewer rounds, lets more nodes send to a rail at once, and needs an outbox of as many blocks (n_out).",
    "n_stg": "Local staging slots of a reduce-scatter: how many chunks may be on the way to their sums, each slot with one from every lane. 1..8, default 2, and "
             "on one node, for each group, one a chunk, or 3 with 8 chunks, while memory is not short. More slots let pushes run ahead of sums, and each takes L chunks of "
             "gradients from the arena; slots beyond the chunks of a call are never used.",
    "n_part": "Passes of a reduce-scatter call: the packed output row is cut into n_part * L sub-slices, and one part after the other is moved. 1..4; default, "
              "for each group: the fewest whose staging is at most 21 output shards in fp32 and within a stated budget. "
              "More passes make every block smaller, so that inbox and staging take less, and make more waves, rounds and descriptors; a full outbox keeps its size.",
    "n_out": "Outbox blocks a bank, of which there are two: sums of a reduce-scatter that may wait to be sent. full or a number, at least min(k, W, M-1); default "
             "full, which is n_part * (M-1), and with mode slot_reuse what two rounds need. A smaller outbox takes less of the arena, and sums then wait for puts to "
             "leave; a number above full only takes memory.",
    "cast": "Whether the all-gather casts its shard into the stage before it sends it. 0 or 1, default: 1 exactly where a group is gathered in another type than it "
            "is stored in (param_dtype). With 1 the stage has one block more and the shard stays outside the arena; 0 is refused where types differ.",
    "chunk_bytes": "Bytes of a staging slot of a reduce-scatter: gradients are pushed and summed in chunks of so many columns of a block as fit, so that staging is "
                   "small whatever the group, and slots are reused within a block. 0..2^40, default 0: chunks says how many. At most 256 chunks a block.",
    "chunks": "Chunks of a block, instead of chunk_bytes: the same number for every group and node count, so that one proof serves them all. 1..256; default, for "
              "each group: 1, or 4 (on one node 2, 4 or 8) where a block is large beside what a meeting of lanes costs, or memory is short.",
    "stripes": "Puts that a block is split into, each over an RMA context of its own, with its own signal; the receiver waits for all of them. 1..8, default 1. A block "
               "has at least as many chunks, and a multiple of them.",
    "ctas_sum": "CTAs of the kernel that sums gradients in a node. 1..1024; default: what feeds the rail, and on one node the pushes, but no more than leave a GEMM of "
                "one wave in one wave (8 on an H200). It changes no plan and no bit.",
    "ctas_land": "CTAs of the kernel that lands a wave. 1..1024; default: what lands the last wave within a twentieth of the time on the wire, up to what the switch takes. "
                 "It changes no plan and no bit.",
    "pacing": "Whether a round of the all-gather waits until the one before is confirmed, against incast. on or off, default off. " + NOT_BUILT,
}

# Several words share a row where one explains the other.
GLOSSARY = {
    "node, lane, rank": "M nodes of L lanes (GPUs); rank r = n*L + j is lane j of node n; N = M*L",
    "rail": "the network that joins the same lane of all nodes; a put never leaves its rail",
    "group": "the parameters that FSDP2 gathers and reduces together",
    "shard": "the rows of every parameter that one rank stores: S bytes, padding included",
    "landing": "where an all-gather ends: parameter-major, so that each parameter is one contiguous tensor; there are two, used in turn, or one where a group has its plan to itself",
    "stage": "where shards of other nodes, or gradients of other lanes, lie before they are placed or summed",
    "block": "what moves at once: a shard, or one sub-slice of the rows of a node's ranks",
    "sub-slice": "a part of a rank's packed output row; there are `n_part` times L of them",
    "chunk, stripe": "columns of a block that are pushed and summed at once; chunks of a block that travel over one RMA context",
    "contributor": "a node, seen from the one that it sends to: contributor c is c nodes away, M is the node itself",
    "wave, width": "the contributors that land together; at most W of them",
    "round": "puts in flight on a rail at once; at most k of them",
    "outbox, spare": "sums that wait to be sent, and the own node's sum that waits to be landed",
    "inbox": "where the sums of other nodes arrive; it rests at zero",
    "generation, bank": "which of two copies a wave of the inbox, or a call of the outbox, uses",
    "credit": "the promise that a block of the receiver may be written again",
    "arena": "all temporary memory of a plan, or of all plans of a model together, at the same offsets on every rank",
    "slot": "a landing of a model's arena, for groups that never live at the same time",
    "step, phase, gate": "a reduce-scatter of backward and the all-gather that comes next; its reads, then its network; what holds that all-gather back until "
                         "gradients in its landing are read",
    "mode, in_place, slot_reuse": "where gradients lie while they are reduced: where autograd left them, or in the landing that their parameters have just left; `--mode`",
    "order": "when a step gathers, reshards and reduces each group; it shapes the model's arena, and no plan: `--order`, `examples/README.md`",
    "budget": "GiB that the model's arena may take: `--budget`; a larger one is refused (V401)",
    "fence": "all ranks end one plan's calls before any begins another's in the same memory",
    "window": "an arena as NCCL registers it",
    "echo": "the emitted program, compiled to print what it would issue",
    "stock": "FSDP2's own collective",
    "knob": "a number of a plan that may be set with `--set`: `tidec explain W`",
    "descriptor": "one copy or put as the hardware is given it: rows of equal width, each a pitch further",
    "claim": "one statement about a schedule or a plan, with a code and a scope; its verdict is proved, refuted, unknown or vacuous",
    "vacuous": "said of a claim whose assumptions contradict each other: it holds of nothing, so it does not count as proved",
    "premise": "a condition on M under which the claims of a wave width hold; compile refuses a node count that breaks it (P013)",
    "bundle": "a folder with plans, certificates and emitted sources, named by its digest",
}


def page(word: str) -> tuple[str, str]:
    """(what it is called in full, what it means) of a knob or a word, whatever its case where that is clear; two empty texts for any other."""
    if word in KNOBS:
        return f"knob {word}", KNOBS[word]
    for names, text in GLOSSARY.items():
        if word.lower() in names.split(", "):
            return names, text
    return next(((f"knob {k}", KNOBS[k]) for k in KNOBS if k.lower() == word.lower()), ("", ""))


def words() -> tuple[str, ...]:
    """Every knob and every word."""
    return (*KNOBS, *(name for names in GLOSSARY for name in names.split(", ")))
