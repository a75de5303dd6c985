"""An outbox block is summed into again once one of its two stripes has left."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("        for _, x in each_stripe(): s.wait(sent.call(call)[J, *x])\n",
     "        s.wait(sent.call(call)[J, 0])\n"),
)
PROVED_AT = dict(lanes=8, W=4, k=2, chunks=2, stripes=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=2, n_out=2, chunks=2, stripes=2)
ABOUT = "outbox"
PROVER = ("V205",)
GRAPH = ("V205",)
VALUES = True
