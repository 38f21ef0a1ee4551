"""Batched K-means: many independent problems of one shape at once."""
