"""Completions of puts to several peers share one counter, so that a fast peer counts for a slow one (hazard 6)."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("s.flag(\"sent\", each=True, J=(0, D), **stripe)",
     "s.flag(\"sent\", J=(0, D), **stripe)"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1)
ABOUT = "sent"
PROVER = ("V202",)
GRAPH = ("V202",)
VALUES = False
