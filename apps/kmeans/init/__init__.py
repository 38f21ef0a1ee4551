"""Initial centers: k-means++ in host memory and on a GPU, and k-means||."""
