"""Update of a Lloyd iteration: adds reassigned rows to the fixed-point cluster sums, and computes the new centers.

The package assign computes the labels.
"""
