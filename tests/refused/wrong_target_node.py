"""Contributor c sends to n - c; its partial was summed for n + c."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("t = wrap(n + c, M)",
     "t = back(n - c, M)"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1)
ABOUT = "inbox"
PROVER = ("V105", "V106", "V203")
GRAPH = ("V201", "V203")
VALUES = True
