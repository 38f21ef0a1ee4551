"""Inertia Σ w·‖x − c‖², c being the center of the label of x: by a pass over X, or from the running cluster sums.

The packages assign and update compute labels and centers.
"""
