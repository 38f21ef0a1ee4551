"""Exact K-means: `TSKMeans`, the loop, the seeding, and one engine a device; and many problems at once."""

from tsapps.apps.kmeans.batched.api import BatchedClustering, kmeans_batched
from tsapps.apps.kmeans.estimator import TSKMeans

__all__ = ["BatchedClustering", "TSKMeans", "kmeans_batched"]
