"""All puts of a round keep the promise of the first one."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("have[h, k].at(to, j), done",
     "have[h, 0].at(to, j), done"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=4)
ABOUT = "have"
PROVER = ("V202", "V203")
GRAPH = ("V202",)
VALUES = False
