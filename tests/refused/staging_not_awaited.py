"""A sum reads the staging before the other lanes have pushed."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("                for i in s.others(\"i\"): s.wait(staged[U].by(n, i))\n",
     ""),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=1, W=2, k=1)
ABOUT = "stage"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
