"""The inertia, Σ ‖x − c‖²: from rows, and from the sums of the clusters."""
