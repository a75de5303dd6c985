"""The own partial is copied out of the spare before it was summed."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("                        s.wait(owned[p])\n",
     ""),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "spare"
PROVER = ("V201", "V107")
GRAPH = ("V201",)
VALUES = True
