"""Staging slots are waited for once a block, though a block of three chunks uses the one slot three times."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("                    for o in s.others(\"o\"): s.wait(freed.call(where(U >= n_stg, e, e - 1))[where(U >= n_stg, U - n_stg, far)].by(n, o))\n",
     "                    with s.when((U % chunks).eq(0)):\n"
     "                        for o in s.others(\"o\"): s.wait(freed.call(where(U >= n_stg, e, e - 1))[where(U >= n_stg, U - n_stg, far)].by(n, o))\n"),
)
PROVED_AT = dict(lanes=8, W=4, k=2, n_stg=1, chunks=3)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=2, n_stg=1, chunks=3)
ABOUT = "stage"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
