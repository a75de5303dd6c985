"""All lanes raise the one counter of a flag that a rank has for itself, so that a fast lane would count for a slow one (hazard 6): a counter has one raiser."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("s.flag(\"done\", NODE)",
     "s.flag(\"done\")"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=3)
ABOUT = "done"
PROVER = ("V103", "V203")
GRAPH = ("V201", "V202", "V203")
VALUES = False
