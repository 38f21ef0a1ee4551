"""Lloyd iterations for small d and small k: one launch assigns rows and updates the sums, and reads X once.

Iterations on the half-precision copy of X are in the packages assign, bounds and update.
"""
