"""Checked products: detect, locate and correct wrong elements of C = A · B while it is computed."""
