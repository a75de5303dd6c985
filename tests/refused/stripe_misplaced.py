"""A stripe is put where the other one of its block belongs."""
SCHEDULE = "tide_rs"
REPLACE = (
    ("inbox[g, sub(c, j), *at].at(t, j)",
     "inbox[g, sub(c, j), (at[0] + 1) % stripes, ALL].at(t, j)"),
)
PROVED_AT = dict(lanes=8, W=4, k=2, chunks=2, stripes=2)
PLAYED_AT = dict(lanes=2, nodes=3, W=2, k=2, chunks=2, stripes=2)
ABOUT = "inbox"
PROVER = ("V105",)
GRAPH = ()
VALUES = True
