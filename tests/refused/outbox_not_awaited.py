"""A partial is summed into an outbox block that a put of call e - 2 may still read (case 63)."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("                reusable(e - 2, x if full else D - 1 - (D - 1 - x) % n_out)\n",
     ""),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "outbox"
PROVER = ("V205",)
GRAPH = ("V205",)
VALUES = True
