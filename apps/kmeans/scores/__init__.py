"""Scores of clusterings: silhouettes and indices, by blocks of rows anywhere, or by kernels for an array on a GPU."""
