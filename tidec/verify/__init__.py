"""WHY IT IS RIGHT: claims for every M, generated from a program and decided by a solver."""
