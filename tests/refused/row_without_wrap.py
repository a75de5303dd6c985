"""The second run of a round, behind node M - 1, is placed without taking M off."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("n + h + k - M, o",
     "n + h + k, o"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=2)
ABOUT = "land"
PROVER = ("V102", "V105")
GRAPH = ("V102",)
VALUES = True
