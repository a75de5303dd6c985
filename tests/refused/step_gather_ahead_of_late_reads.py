"""An all-gather stands ahead of the network phase and waits for gradients that a partial outbox lets be read in it."""
SCHEDULE = "backward"
STEP = dict(mode="slot_reuse", place="ahead")
REPLACE = ()
PROVED_AT = dict(lanes=2, W=2, k=1, n_out=1)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=1, n_out=1)
ABOUT = "consumed"
PROVER = ("V204",)
GRAPH = ("V204",)
VALUES = True
