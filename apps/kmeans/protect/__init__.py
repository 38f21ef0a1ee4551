"""Checks of a fit: each step is compared with a second computation, and repeated where they differ."""
