"""The outbox is awaited one call too far back."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("reusable(e - 2, ",
     "reusable(e - 3, "),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "outbox"
PROVER = ("V205",)
GRAPH = ("V205",)
VALUES = True
