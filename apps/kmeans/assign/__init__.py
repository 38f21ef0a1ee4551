"""Labels: scores by a product with an arg-min epilogue, and float64 rescoring of ambiguous rows."""
