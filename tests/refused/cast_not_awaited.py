"""Slot 0 is placed before the cast has filled it."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("        if cast: s.wait(ready)\n        for o in",
     "        for o in"),
)
PROVED_AT = dict(lanes=8, cast=True)
PLAYED_AT = dict(lanes=2, nodes=1, cast=True)
ABOUT = "stage"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
