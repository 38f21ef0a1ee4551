"""Initial centers: greedy k-means++ on the CPU and the GPU, pruned k-means++, k-means‖, and random samples.

Lloyd iterations are in the other packages.
"""
