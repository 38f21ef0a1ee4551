"""Mini-batch K-means: fits whose steps read a few rows each, drawn at random or given batch by batch."""
