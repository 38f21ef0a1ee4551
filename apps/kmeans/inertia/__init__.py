"""Inertia Σ w·‖x − c‖²: by a pass over X, or from the running cluster sums.

Labels and centers are never computed here.
"""
