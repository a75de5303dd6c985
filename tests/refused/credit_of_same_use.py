"""A put waits for the credit that its own use gives when it is over."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("credit.call(pe)[c, pp].by(wrap(n + c, M), j)",
     "credit[c, p].by(wrap(n + c, M), j)"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "credit"
PROVER = ("V204",)
GRAPH = ("V204",)
VALUES = True
