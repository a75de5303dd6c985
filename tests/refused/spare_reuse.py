"""Nothing orders the copy out of the spare before the sum of call e + 2 into it (hazard 1)."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("s.wait(placed.call(e - 2)[p])",
     "pass"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "spare"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
