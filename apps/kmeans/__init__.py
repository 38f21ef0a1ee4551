"""Exact K-means: `TSKMeans`, the loop, the seeding, and one engine a device."""

from tsapps.apps.kmeans.estimator import TSKMeans

__all__ = ["TSKMeans"]
