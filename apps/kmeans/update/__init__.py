"""Update of a Lloyd iteration: fixed-point cluster sums, updated by reassigned rows, and new centers from them.

Labels are never computed here: see assign.
"""
