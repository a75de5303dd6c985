"""The first sums of a call wait for the wrong last occupant of their outbox block."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("D - 1 - (D - 1 - x) % n_out",
     "D - n_out + x"),
)
PROVED_AT = dict(lanes=8, W=4, k=2, n_out=4)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1, n_out=2)
ABOUT = "outbox"
PROVER = ("V203", "V205")
GRAPH = ("V203", "V205")
VALUES = True
