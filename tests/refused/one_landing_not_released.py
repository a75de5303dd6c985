"""With one landing nobody waits until the call before is used no more."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("s.wait(released.call(e - (landings - 1)))",
     "pass"),
)
PROVED_AT = dict(lanes=8, landings=1)
PLAYED_AT = dict(lanes=2, nodes=1, landings=1)
ABOUT = "land"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
