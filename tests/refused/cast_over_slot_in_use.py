"""The next call casts into slot 0 while it may still be placed."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("        with s.when(True if cast else no(s.single_node)): s.wait(scattered.call(e - 1))\n",
     ""),
)
PROVED_AT = dict(lanes=8, cast=True)
PLAYED_AT = dict(lanes=2, nodes=1, cast=True)
ABOUT = "stage"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
