"""A lane places shards on all lanes once its own landing is free."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("s.wait(room.by(n, i))",
     "s.wait(room.by(n, j))"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=1)
ABOUT = "land"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
