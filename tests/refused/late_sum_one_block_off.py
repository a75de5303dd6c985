"""A later sum waits for the completion of the block before the one that it overwrites."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("reusable(e, x - n_out)",
     "reusable(e, x - n_out - 1)"),
)
PROVED_AT = dict(lanes=8, W=4, k=2, n_out=4)
PLAYED_AT = dict(lanes=2, nodes=4, W=2, k=1, n_out=2)
ABOUT = "outbox"
PROVER = ("V203", "V205")
GRAPH = ("V201", "V203", "V205")
VALUES = True
