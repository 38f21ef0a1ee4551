"""Update of a Lloyd iteration: fixed-point cluster sums, updated by reassigned rows, and new centers from them.

Labels are computed in the package assign.
"""
