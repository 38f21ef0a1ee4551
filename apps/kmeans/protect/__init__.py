"""ABFT of a fit: checks of sums, labels and centers after each iteration. A faulty iteration is recomputed.

Checks of matrix products are in apps/abft/product.
"""
