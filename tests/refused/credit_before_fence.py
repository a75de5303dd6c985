"""Credits are given once the own landing is through; other lanes may still read the inbox (hazard 3)."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("                    s.meet(landed[p, w])\n",
     ""),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "inbox"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
