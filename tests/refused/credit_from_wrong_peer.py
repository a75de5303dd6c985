"""A round waits for the credit of the node that it receives from, not of the one that it sends to."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("s.wait(credit[h].by(to, j))",
     "s.wait(credit[h].by(wrap(n + h, M), j))"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=3)
ABOUT = "credit"
PROVER = ("V203",)
GRAPH = ("V201", "V203")
VALUES = True
