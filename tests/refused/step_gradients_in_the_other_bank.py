"""The gradients are looked for in the bank that holds parameters."""
SCHEDULE = "backward"
STEP = dict(mode="slot_reuse", place="ahead")
REPLACE = (
    ('lies(("grad", "rows"), land[e % B',
     'lies(("grad", "rows"), land[(e + 1) % B'),
)
PROVED_AT = dict(lanes=2, W=2, k=1)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1)
ABOUT = "land"
PROVER = ("V107", "V201")
GRAPH = ("V201",)
VALUES = True
