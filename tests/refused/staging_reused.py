"""A lane pushes into a staging slot that the owner may still sum (one slot)."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("                    for o in s.others(\"o\"): s.wait(freed.call(where(U >= n_stg, e, e - 1))[where(U >= n_stg, U - n_stg, far)].by(n, o))\n",
     ""),
)
PROVED_AT = dict(lanes=8, W=2, k=2, n_stg=1)
PLAYED_AT = dict(lanes=2, nodes=1, W=2, k=2, n_stg=1)
ABOUT = "stage"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
