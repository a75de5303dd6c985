"""The caller may change its shard while a copy may still read it (hazard 8, the copies)."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("            s.wait(scattered)\n",
     ""),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=1)
ABOUT = "shard"
PROVER = ("V205",)
GRAPH = ("V205",)
VALUES = True
