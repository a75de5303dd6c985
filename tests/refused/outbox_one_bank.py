"""Two banks of the outbox are declared, one is used."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("e % 2, block",
     "0 * e, block"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "outbox"
PROVER = ("V205",)
GRAPH = ("V201", "V205")
VALUES = True
