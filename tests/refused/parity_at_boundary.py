"""The use before the first wave ignores whether the number of waves is odd (hazard 7)."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("where(((Wn - 1 - w) % 2).eq(0), Wn - 1, Wn - 2)",
     "where(w.eq(0), Wn - 2, Wn - 1)"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=3, nodes=3, W=1, k=1)
ABOUT = "inbox"
PROVER = ("V107",)
GRAPH = ()
VALUES = True
