"""Every contributor sends the sub-slice of its own lane: all of a wave land in one block."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("inbox[g, sub(c, j), *at].at(t, j)",
     "inbox[g, j, *at].at(t, j)"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1)
ABOUT = "inbox"
PROVER = ("V104",)
GRAPH = ("V201",)
VALUES = True
