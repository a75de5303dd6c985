"""The last stripe of a block goes over an RMA context that the communicator does not have."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("context=context, contributor=c", "context=context + 1, contributor=c"),
)
PROVED_AT = dict(lanes=8, W=4, k=2, chunks=2, stripes=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=2, chunks=2, stripes=2)
ABOUT = "context"
PROVER = ("V102",)
GRAPH = ("V102",)
VALUES = False
