"""The entry of a call waits for the release that the same call gives later."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("s.wait(released.call(e - (landings - 1)))",
     "s.wait(released)"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=1)
ABOUT = "released"
PROVER = ("V204",)
GRAPH = ("V204",)
VALUES = True
