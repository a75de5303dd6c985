"""A round's slots go to the node n + h instead of n - h: the receiver stores them as another node's."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("to = back(n - h, M)",
     "to = wrap(n + h, M)"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=3)
ABOUT = "stage"
PROVER = ("V105", "V107", "V203")
GRAPH = ("V201", "V203")
VALUES = True
