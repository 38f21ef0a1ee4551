"""Fixed-point sums of the clusters, updated by reassigned rows, and new centers."""
