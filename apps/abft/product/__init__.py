"""Protected products: detect, locate and correct wrong elements of C = A · B, during or after its computation."""
