"""Every lane pushes a chunk that is not the one which its peer sums."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("lambda o, at: grad[p, served(c), sub(c, o), *at]",
     "lambda o, at: grad[p, served(c), sub(c, o), at[0], (at[1] + 1) % per]"),
)
PROVED_AT = dict(lanes=8, W=4, k=2, chunks=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=2, chunks=2)
ABOUT = "stage"
PROVER = ("V105",)
GRAPH = ()
VALUES = True
