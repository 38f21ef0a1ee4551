"""Labels: arg-min of scores by a GEMM epilogue, certified by an error bound; float64 rescoring of ambiguous rows.

The package update computes cluster sums and new centers.
"""
