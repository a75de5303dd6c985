"""Credits are told on a stream of their own, issued behind the puts that wait for them: one communicator, or one hardware queue, then stops."""
SCHEDULE = "tide_ag"
REPLACE = (
    ("            for h in s.doubling(\"h\", M): s.signal(credit[h].at(wrap(n + h, M), j))\n",
     ""),
    ("    with s.stream(\"update\"):",
     "    with s.stream(\"credits\"):\n        with s.when(no(s.single_node)):\n            s.wait(scattered.call(e - 1))\n"
     "            for q in s.serial(\"q\", 1, M): s.wait(sent.call(e - 1)[q])\n"
     "            for h in s.doubling(\"h\", M): s.signal(credit[h].at(wrap(n + h, M), j))\n\n    with s.stream(\"update\"):"),
)
PROVED_AT = dict(lanes=4)
PLAYED_AT = dict(lanes=2, nodes=3)
ABOUT = "credit"
PROVER = ("V204",)
GRAPH = ("V204",)
VALUES = True
