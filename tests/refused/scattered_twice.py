"""A flag without keys is raised twice in a call, so that it counts twice."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("        for o in everywhere(): place(first, n, o)\n",
     "        s.signal(scattered)\n        for o in everywhere(): place(first, n, o)\n"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=1)
ABOUT = "scattered"
PROVER = ("V202",)
GRAPH = ("V202", "V205")
VALUES = True
