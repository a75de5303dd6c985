"""The puts of a round keep the promises of one counter in another order than the box counts them."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("then=have[h, k].at(to, j)",
     "then=have[h, moved(h) - k].at(to, j)"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=7)
ABOUT = "have"
PROVER = ("V202",)
GRAPH = ("V202",)
VALUES = False
