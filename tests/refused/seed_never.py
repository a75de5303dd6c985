"""No landing starts afresh: the output accumulates over calls."""
SCHEDULE = "tide_rs"
REPLACE = (
    (", seed=w.eq(0)",
     ""),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "out"
PROVER = ("V107",)
GRAPH = ()
VALUES = True
