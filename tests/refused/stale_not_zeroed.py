"""A block that only the last use of its generation filled is landed again."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("s.zero(inbox[g, (j + d) % L, *whole])",
     "pass"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=1, k=1)
ABOUT = "inbox"
PROVER = ("V107",)
GRAPH = ()
VALUES = True
