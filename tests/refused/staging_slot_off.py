"""A push waits for the slot before the one that it fills."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("U - n_stg, far",
     "U - n_stg - 1, far"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1, n_stg=2)
ABOUT = "freed"
PROVER = ("V201", "V203")
GRAPH = ("V201", "V203")
VALUES = True
