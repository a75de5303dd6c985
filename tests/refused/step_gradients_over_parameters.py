"""The gradients are copied into the landing while its parameters are still in use."""
SCHEDULE = "backward"
STEP = dict(mode="slot_reuse", place="ahead")
REPLACE = (
    ('with s.stream("ag_compute"):',
     'with s.stream("rs_push"):'),
)
PROVED_AT = dict(lanes=2, W=2, k=1)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1)
ABOUT = "land"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
