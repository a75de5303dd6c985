"""With one landing gradients are filled in before the parameters that lie there have been used."""
SCHEDULE = "backward"
STEP = dict(mode="slot_reuse", place="ahead")
REPLACE = (
    ("    s.issue(s.gather.uses) ",
     "    pass "),
    ("s.issue(s.gather.behind_uses)",
     "s.issue(s.gather.uses); s.issue(s.gather.behind_uses)"),
)
PROVED_AT = dict(lanes=2, W=2, k=1, landings=1)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1, landings=1)
ABOUT = "land"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
