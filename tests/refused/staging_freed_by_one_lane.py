"""A lane pushes to all others once one of them has freed its slot."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("U - n_stg, far)].by(n, o))",
     "U - n_stg, far)].by(n, (j + 1) % L))"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=3, nodes=1, W=3, k=1, n_stg=1)
ABOUT = "stage"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
