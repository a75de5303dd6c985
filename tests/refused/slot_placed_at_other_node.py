"""A slot is placed in the row of a node that is h short."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("place(stage[h + k], n + h + k, o)",
     "place(stage[h + k], n + k, o)"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=2)
ABOUT = "land"
PROVER = ("V104", "V105")
GRAPH = ()
VALUES = True
