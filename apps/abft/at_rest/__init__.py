"""Checksums of data at rest: encode a matrix, verify it later, locate and correct corrupted elements."""
