"""Checksums that find and repair numbers that went wrong (ABFT, algorithm-based fault tolerance)."""
