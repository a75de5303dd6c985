"""The reduce-scatter reads the landing before the gradients are copied there."""
SCHEDULE = "backward"
STEP = dict(mode="slot_reuse", place="ahead")
REPLACE = (
    ("with s.stream(stream): s.wait(filled)",
     "pass"),
)
PROVED_AT = dict(lanes=2, W=2, k=1)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1)
ABOUT = "land"
PROVER = ("V107", "V201")
GRAPH = ("V201",)
VALUES = True
