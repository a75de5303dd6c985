"""The spare is awaited one call too far back."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("placed.call(e - 2)",
     "placed.call(e - 3)"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "spare"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
