"""Many K-means problems of one shape at once."""
