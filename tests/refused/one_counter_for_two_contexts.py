"""Stripes of two RMA contexts count on one counter, although they arrive in any order."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("on=dict(c=(1, M), **stripe), p=(0, n_part))",
     "on=dict(c=(1, M)), p=(0, n_part), **stripe)"),
    ("then=arrived[c, *x, p].at(t, j)",
     "then=arrived[c, p, *x].at(t, j)"),
    ("s.wait(arrived[c, *x, p].by",
     "s.wait(arrived[c, p, *x].by"),
)
PROVED_AT = dict(lanes=8, W=4, k=2, chunks=2, stripes=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=2, chunks=2, stripes=2)
ABOUT = "arrived"
PROVER = ("V202",)
GRAPH = ("V202",)
VALUES = False
