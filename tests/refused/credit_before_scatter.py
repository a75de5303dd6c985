"""A stage is offered again before its slots were placed (hazard 4)."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("        with s.when(True if cast else no(s.single_node)): s.wait(scattered.call(e - 1))\n",
     ""),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=2)
ABOUT = "stage"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
