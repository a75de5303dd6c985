"""The caller may change its shard while a put may still read it (hazard 8: the first put has its source there)."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("                for h in s.doubling(\"h\", M): s.wait(sent[h])\n        s.free",
     "                pass\n        s.free"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=2)
ABOUT = "shard"
PROVER = ("V205",)
GRAPH = ("V205",)
VALUES = True
