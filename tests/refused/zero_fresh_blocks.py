"""A wave clears blocks that its own contributors have filled."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("s.when(every(fills(pw, d), no(fills(w, d))))",
     "s.when(d >= 0)"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "inbox"
PROVER = ("V104",)
GRAPH = ()
VALUES = True
