"""Every push of a lane goes to itself."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("stage[U % n_stg, j].of(U).at(n, o)",
     "stage[U % n_stg, j].of(U).at(n, j)"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=1, W=2, k=1)
ABOUT = "stage"
PROVER = ("V104", "V105")
GRAPH = ()
VALUES = True
