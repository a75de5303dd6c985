"""A forwarded slot lands one place too early in the receiver's stage."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("stage[h + k].at(to, j)",
     "stage[h + k - 1].at(to, j)"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=4)
ABOUT = "stage"
PROVER = ("V104", "V105")
GRAPH = ("V201",)
VALUES = True
