"""The caller reads the landing once its own lane is done, though every lane writes into it."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("s.wait(done.call(e - 1).by(n, i))",
     "s.wait(done.call(e - 1).by(n, j))"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=1)
ABOUT = "land"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
