"""A put goes to the next lane's inbox: it leaves its rail."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("inbox[g, sub(c, j), *at].at(t, j),\n",
     "inbox[g, sub(c, j), *at].at(t, (j + 1) % L),\n"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "inbox"
PROVER = ("V103", "V104")
GRAPH = ("V201",)
VALUES = True
