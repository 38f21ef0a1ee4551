"""Both codes of data at rest in one pass on a GPU, and the comparison of their sums."""
