"""The caller may free its gradients once the own sums have read them; copy engines may still push them to other lanes."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("            if L > 1: s.wait(pushed)\n",
     ""),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "grad"
PROVER = ("V205",)
GRAPH = ("V205",)
VALUES = True
