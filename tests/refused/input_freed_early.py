"""The caller may free its gradients before the own sums have read them."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("            for p in s.serial(\"p\", 0, n_part):\n                s.wait(placed",
     "            if full: free(grad[ALL, ALL, ALL, *whole])\n            for p in s.serial(\"p\", 0, n_part):\n                s.wait(placed"),
    ("        if full: free(grad[ALL, ALL, ALL, *whole])\n\n",
     "\n"),
)
PROVED_AT = dict(lanes=8, W=4, k=2)
PLAYED_AT = dict(lanes=2, nodes=2, W=2, k=1)
ABOUT = "grad"
PROVER = ("V205",)
GRAPH = ("V205",)
VALUES = True
