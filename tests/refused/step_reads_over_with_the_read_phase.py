"""The gradients count as read when the read phase ends, and a partial outbox reads on in the network phase."""
SCHEDULE = "backward"
STEP = dict(mode="slot_reuse", place="ahead")
REPLACE = (
    ("freed=consumed)\n    if ahead",
     'freed=consumed)\n    with s.stream("rs_sum"): s.signal(consumed)\n    if ahead'),
    ("s.issue(s.reduce.network, freed=consumed)",
     "s.issue(s.reduce.network, freed=late)"),
    ('filled, consumed = s.flag("filled"), s.flag("consumed")',
     'filled, consumed, late = s.flag("filled"), s.flag("consumed"), s.flag("late")'),
)
PROVED_AT = dict(lanes=2, W=2, k=1, n_out=1)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1, n_out=1)
ABOUT = "land"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
