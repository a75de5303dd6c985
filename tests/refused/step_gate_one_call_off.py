"""The gate awaits the reads of the call before."""
SCHEDULE = "backward"
STEP = dict(mode="slot_reuse", place="behind")
REPLACE = (
    ("s.wait(consumed)",
     "s.wait(consumed.call(e - 1))"),
)
PROVED_AT = dict(lanes=2, W=2, k=1, n_out=1)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1, n_out=1)
ABOUT = "land"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
