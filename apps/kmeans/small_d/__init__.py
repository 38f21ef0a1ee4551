"""Lloyd iterations for small d and small k: one launch labels all rows, updates the cluster sums, and reads X once.

The packages assign, bounds and update have the iterations that read the half-precision copy of X.
"""
