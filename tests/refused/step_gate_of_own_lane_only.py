"""The gate holds up the own copies, and the other lanes were told of room before."""
SCHEDULE = "backward"
STEP = dict(mode="slot_reuse", place="ahead")
REPLACE = (
    ('with s.stream("ag_entry"): s.wait(consumed)',
     'with s.stream("ag_scatter"): s.wait(consumed)'),
)
PROVED_AT = dict(lanes=2, W=2, k=1)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1)
ABOUT = "land"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
