"""A rail told by the heads of its peer, signalled before the puts, forwards what has not arrived (hazard 5)."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("    sent     = s.flag(\"sent\"",
     "    heads    = s.flag(\"heads\", RAIL, on=dict(h=(\"x2\", M)))\n    sent     = s.flag(\"sent\""),
    ("                s.put(first, stage[h].at(to, j)",
     "                s.signal(heads[h].at(to, j))\n                s.put(first, stage[h].at(to, j)"),
    ("                for k in s.serial(\"k\", 0, moved(h)): s.wait(have[h, k].by(wrap(n + h, M), j))\n\n",
     "                s.wait(heads[h].by(wrap(n + h, M), j))\n\n"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=4)
ABOUT = "stage"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
