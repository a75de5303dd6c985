"""A slot is forwarded before it has arrived."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("                    s.put(stage[k], stage[h + k].at(to, j), then=have[h, k].at(to, j), done=sent[h + k])\n                for k in s.serial(\"k\", 0, moved(h)): s.wait(have[h, k].by(wrap(n + h, M), j))\n",
     "                    s.put(stage[k], stage[h + k].at(to, j), then=have[h, k].at(to, j), done=sent[h + k])\n"),
)
PROVED_AT = dict(lanes=8)
PLAYED_AT = dict(lanes=2, nodes=4)
ABOUT = "stage"
PROVER = ("V201",)
GRAPH = ("V201",)
VALUES = True
