"""With one landing the parameters of a call are used behind the call that overwrites them, as with two."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("    if landings == 1: use() ",
     "    pass "),
    ("if landings > 1: use()",
     "use()"),
)
PROVED_AT = dict(lanes=8, landings=1)
PLAYED_AT = dict(lanes=2, nodes=1, landings=1)
ABOUT = "released"
PROVER = ("V204",)
GRAPH = ("V204",)
VALUES = True
