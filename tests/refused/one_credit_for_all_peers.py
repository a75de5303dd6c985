"""One credit counter serves all senders."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("s.flag(\"credit\",  RAIL, on=dict(c=(1, M))",
     "s.flag(\"credit\",  RAIL, on=dict(c=(1, 2))"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=4, W=2, k=1)
ABOUT = "credit"
PROVER = ("V202", "V203")
GRAPH = ("V201", "V202", "V203")
VALUES = False
