"""One landing is declared and two are used."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("bank=landings",
     "bank=1"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=1)
ABOUT = "land"
PROVER = ("V102",)
GRAPH = ("V102",)
VALUES = True
