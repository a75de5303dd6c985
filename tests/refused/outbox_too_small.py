"""The outbox holds fewer blocks than a round sends (hazard 9)."""
SCHEDULE = "tide_rs"
REPLACE = ()
PROVED_AT = dict(lanes=8, W=8, k=4, n_out=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=2, n_out=1)
ABOUT = "summed"
PROVER = ("V204",)
GRAPH = ("V204",)
VALUES = True
