"""One run of copies passes node M - 1: its rows do not advance evenly."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("least(hi, turn)",
     "hi"),
    ("                        for o in everywhere():\n                            for k in s.run(\"k\", most(lo, turn), hi): place(stage[h + k], n + h + k - M, o)\n",
     ""),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=2)
ABOUT = "land"
PROVER = ("V102",)
GRAPH = ("V102",)
VALUES = True
