"""A wave is landed before its contributors have arrived."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("                            for _, x in each_stripe(): s.wait(arrived[c, *x, p].by(back(n - c, M), j))\n",
     "                            pass\n"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "inbox"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
