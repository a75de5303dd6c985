"""A put waits for the sum of the block before it."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("s.wait(summed[J(p, c)])",
     "s.wait(summed[most(J(p, c) - 1, 0)])"),
    ("least, no",
     "least, most, no"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1)
ABOUT = "outbox"
PROVER = ("V201", "V107")
GRAPH = ("V201",)
VALUES = True
