"""Initial centers: greedy k-means++ on the CPU and the GPU, pruned k-means++, k-means‖, and random samples.

The packages assign and update have the stages of a Lloyd iteration.
"""
