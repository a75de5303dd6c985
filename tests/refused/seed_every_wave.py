"""Every landing starts from what the caller accumulates into, not only the first: the waves before are lost."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("seed=w.eq(0)",
     "seed=w >= 0"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1)
ABOUT = "out"
PROVER = ("V104",)
GRAPH = ()
VALUES = True
