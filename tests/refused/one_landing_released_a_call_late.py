"""With one landing a call waits for what it would wait for with two: the release of the call before the last."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("released.call(e - (landings - 1))",
     "released.call(e - 1)"),
)
PROVED_AT = dict(lanes=8, landings=1)
PLAYED_AT = dict(lanes=2, nodes=1, landings=1)
ABOUT = "land"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
