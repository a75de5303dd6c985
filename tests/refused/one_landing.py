"""All calls use one landing: the next call overwrites what the caller computes with."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("land[e % landings, m, j]",
     "land[0, m, j]"),
    ("land[(e - 1) % landings, ALL",
     "land[0, ALL"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=1)
ABOUT = "land"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
