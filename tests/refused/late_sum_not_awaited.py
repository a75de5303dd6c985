"""A later sum overwrites an outbox block whose put may still read it."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("                                reusable(e, x - n_out)\n",
     ""),
)
PROVED_AT = dict(lanes=8, W=4, k=2, n_out=4)
PLAYED_AT = dict(lanes=2, nodes=4, W=2, k=1, n_out=2)
ABOUT = "outbox"
PROVER = ("V205",)
GRAPH = ("V201", "V205")
VALUES = True
