"""Checksums of data at rest on a GPU: sums of both codes in one pass, and the comparison of exact sums."""
