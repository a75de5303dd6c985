"""The Latin square is turned by one against the sender's."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("inbox[g, sub(c, j), *at].at(t, j)",
     "inbox[g, (sub(c, j) + 1) % L, *at].at(t, j)"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "inbox"
PROVER = ("V104", "V105")
GRAPH = ()
VALUES = True
