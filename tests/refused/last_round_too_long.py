"""The last round of a node count that is no power of two sends h slots, more than are missing."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("return least(h, M - h)",
     "return h"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=3)
ABOUT = "stage"
PROVER = ("V102", "V104")
GRAPH = ("V102", "V202", "V205")
VALUES = True
