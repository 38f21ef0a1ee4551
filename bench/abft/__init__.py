"""Fault-injection campaign for checksums, and the overhead of protection."""
