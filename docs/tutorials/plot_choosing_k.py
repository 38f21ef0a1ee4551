"""
Choosing the number of clusters
===============================

Inertia always falls as k grows, so it cannot choose k alone. Two common aids are its elbow and the silhouette.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import make_blobs
from sklearn.metrics import silhouette_score

from tsapps import TSKMeans

X, _ = make_blobs(6000, n_features=8, centers=7, cluster_std=2.0, random_state=3)

# %%
# Fit every k. The silhouette compares all pairs of samples, so compute it on a sample of the rows.

ks = range(2, 14)
fits = [TSKMeans(n_clusters=k, n_init=4, random_state=0).fit(X) for k in ks]
inertias = [fit.inertia_ for fit in fits]
silhouettes = [silhouette_score(X, fit.labels_, sample_size=1500, random_state=0) for fit in fits]

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
axes[0].plot(ks, inertias, "o-")
axes[0].set(title="inertia: look for the elbow", xlabel="k")
axes[1].plot(ks, silhouettes, "o-", color="tab:red")
axes[1].set(title="mean silhouette: look for the maximum", xlabel="k")
for axis in axes:
    axis.axvline(7, color="gray", linestyle=":")

# %%
# Both show the seven clusters of these data. They fail on other data:
#
# - Clusters that overlap have no elbow.
# - The silhouette prefers round clusters of similar size.
# - Both suppose that K-means suits the data: it splits long or ring-shaped clusters.
#
# A single start can end in a poor local minimum, which bends the curve. ``n_init`` starts several times and keeps the
# best.
