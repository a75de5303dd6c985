"""Only the first waves of a call wait for a credit of the use before; later ones take the one of the last call (hazard 2)."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("s.wait(credit.call(pe)[c, pp].by(wrap(n + c, M), j))",
     "s.wait(credit.call(e - 1)[c, p].by(wrap(n + c, M), j))"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=7, W=2, k=1)
ABOUT = "inbox"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
