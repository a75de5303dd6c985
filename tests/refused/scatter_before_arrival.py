"""A slot is placed before it has arrived."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("                        for k in s.serial(\"k\", lo, hi): s.wait(have[h, k].by(wrap(n + h, M), j))\n",
     ""),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=2)
ABOUT = "stage"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
