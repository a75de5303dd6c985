"""The rank says that its slots are placed before it has placed them."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("        s.signal(scattered)\n",
     ""),
    ("        for o in everywhere(): place(first, n, o)\n",
     "        s.signal(scattered)\n        for o in everywhere(): place(first, n, o)\n"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=1)
ABOUT = "shard"
PROVER = ("V201", "V205")
GRAPH = ("V205",)
VALUES = True
