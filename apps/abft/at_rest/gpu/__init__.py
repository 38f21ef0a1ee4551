"""Checksums of data at rest on a GPU: the exact and weighted sums in one pass, and the comparison of exact sums."""
