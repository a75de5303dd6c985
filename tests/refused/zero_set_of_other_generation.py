"""A wave clears what the wave before it left, which is in the other generation (hazard 7)."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("every(fills(pw, d)",
     "every(fills(most(w - 1, 0), d)"),
    ("least, no",
     "least, most, no"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=1, k=1)
ABOUT = "inbox"
PROVER = ("V107",)
GRAPH = ()
VALUES = True
