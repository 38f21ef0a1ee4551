"""Labels: arg-min of scores by a GEMM epilogue, certified by an error bound; float64 rescoring of ambiguous rows.

Cluster sums and centers are never here: see update.
"""
