"""A wave is landed once one of two stripes of each block has arrived."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("for _, x in each_stripe(): s.wait(arrived[c, *x, p].by(back(n - c, M), j))",
     "s.wait(arrived[c, 0, p].by(back(n - c, M), j))"),
)
PROVED_AT = dict(lanes=8, W=4, k=2, chunks=2, stripes=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=2, chunks=2, stripes=2)
ABOUT = "inbox"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
