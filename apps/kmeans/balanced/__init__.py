"""K-means whose clusters have limited sizes: `TSBalancedKMeans`, and assignments of samples under such limits."""
