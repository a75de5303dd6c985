"""A shard is placed in the row of the lane that receives it."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("land[e % landings, m, j].at(n, o)",
     "land[e % landings, m, o].at(n, o)"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=1)
ABOUT = "land"
PROVER = ("V104", "V105")
GRAPH = ("V201",)
VALUES = True
