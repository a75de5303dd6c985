"""Two generations are declared, one is used."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("return where(Wn.eq(1), 0, w % 2)",
     "return 0 * w"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1)
ABOUT = "inbox"
PROVER = ("V107", "V202")
GRAPH = ("V201", "V202")
VALUES = True
