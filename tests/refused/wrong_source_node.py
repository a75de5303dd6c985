"""Gradients of the own rows are pushed for every target node."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("lambda o, at: grad[p, served(c), sub(c, o), *at]",
     "lambda o, at: grad[p, n, sub(c, o), *at]"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "stage"
PROVER = ("V105",)
GRAPH = ()
VALUES = True
