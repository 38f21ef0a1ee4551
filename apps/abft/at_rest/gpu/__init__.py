"""Checksums of data at rest on a GPU: both codes in one pass, and the comparison of exact sums."""
