"""Only the last wave clears what it does not fill; the first wave of the next call finds leftovers."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("s.when(every(fills(pw, d), no",
     "s.when(every(w.eq(Wn - 1), fills(pw, d), no"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=1, k=1)
ABOUT = "inbox"
PROVER = ("V107",)
GRAPH = ()
VALUES = True
