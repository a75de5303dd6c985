"""Every push of a lane goes to itself."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("stage[G % n_stg, j].of(G).at(n, o)",
     "stage[G % n_stg, j].of(G).at(n, j)"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=1, W=2, k=1)
ABOUT = "stage"
PROVER = ("V104", "V105")
GRAPH = ()
VALUES = True
