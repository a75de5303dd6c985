"""Nothing holds the next all-gather back until the gradients in its landing have been read."""
SCHEDULE = "backward"
STEP = dict(mode="slot_reuse", place="ahead")
REPLACE = (
    ('with s.stream("ag_entry"): s.wait(consumed)',
     "pass"),
)
PROVED_AT = dict(lanes=2, W=2, k=1)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1)
ABOUT = "land"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
