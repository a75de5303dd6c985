"""Eight lanes, three contributors a wave: contributors 8 and 9 of nine nodes meet in one block."""
SCHEDULE = "tide_rs"
REPLACE = ()
PROVED_AT = dict(lanes=8, W=3, k=2)
PLAYED_AT = dict(lanes=4, nodes=5, W=3, k=2)
ABOUT = "inbox"
PROVER = ("V104",)
GRAPH = ()
VALUES = True
