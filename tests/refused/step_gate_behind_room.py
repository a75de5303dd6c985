"""The other lanes are told of room, then the gradients are awaited."""
SCHEDULE = "backward"
STEP = dict(mode="slot_reuse", place="behind")
REPLACE = (
    ('with s.stream("ag_entry"): s.wait(consumed)',
     "pass"),
    ("        s.issue(s.gather.behind_uses)",
     '        s.issue(s.gather.behind_uses)\n        with s.stream("ag_entry"): s.wait(consumed)'),
)
PROVED_AT = dict(lanes=2, W=2, k=1, n_out=1)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1, n_out=1)
ABOUT = "land"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
