"""Credits are given before the landing has read the inbox."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("                    s.land(inbox[g, ALL, *whole].at(n, ALL), into=out[p, ALL, *whole], seed=w.eq(0))\n                    s.meet(landed[p, w])\n",
     ""),
    ("s.signal(credit[c, p].at(back(n - c, M), j))\n",
     "s.signal(credit[c, p].at(back(n - c, M), j))\n                    s.land(inbox[g, ALL, *whole].at(n, ALL), into=out[p, ALL, *whole], seed=w.eq(0))\n                    s.meet(landed[p, w])\n"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "inbox"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
