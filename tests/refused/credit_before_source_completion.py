"""A stage is offered again while the rank's own forwards may still read it (hazard 4)."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("s.wait(sent.call(e - 1)[q])",
     "pass"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=7)
ABOUT = "stage"
PROVER = ("V205",)
GRAPH = ("V205",)
VALUES = True
