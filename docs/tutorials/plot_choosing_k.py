"""
Choosing the number of clusters
===============================

Inertia falls with every cluster that you add, so it cannot choose k by itself. Two common aids are its elbow and the
silhouette. This page shows where they help, and where they fail.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_blobs
from sklearn.metrics import silhouette_score

from tsapps import TSKMeans

# %%
# Three data sets
# ---------------
#
# The first is what K-means is made for. In the second, the clusters overlap. In the third, they are two rings.

rng = np.random.default_rng(0)
separate, _ = make_blobs(6000, centers=6, cluster_std=0.7, random_state=11)
overlapping, _ = make_blobs(6000, centers=6, cluster_std=3.0, random_state=11)
angles, radii = rng.uniform(0, 2 * np.pi, 6000), rng.choice([3.0, 9.0], 6000) + 0.4 * rng.standard_normal(6000)
rings = np.column_stack([radii * np.cos(angles), radii * np.sin(angles)])
data = {
    "six clusters": (separate, 6),
    "six that overlap": (overlapping, 6),
    "two rings": (rings, 2),
}

# %%
# A curve of each aid
# -------------------
#
# Fit every k. A single start can end in a poor local minimum, which bends the curves. So ``n_init=4`` starts four times
# and keeps the best run.
#
# The silhouette of a sample compares its mean distance to its own cluster with that to the next cluster: 1 is best, and
# 0 means between two clusters. It takes the distances of all pairs, so compute it on a sample of the rows.

ks = range(2, 13)


def curves(X):
    """Return the inertia and the mean silhouette for each k, and the labels for the k with the largest silhouette."""
    fits = [TSKMeans(n_clusters=k, n_init=4, random_state=0).fit(X) for k in ks]
    silhouettes = [silhouette_score(X, fit.labels_, sample_size=1500, random_state=0) for fit in fits]
    return [fit.inertia_ for fit in fits], silhouettes, fits[int(np.argmax(silhouettes))].labels_


figure, axes = plt.subplots(3, 3, figsize=(10, 7), layout="constrained")
for (scatter, elbow, silhouette), (name, (X, truth)) in zip(axes, data.items(), strict=True):
    inertias, silhouettes, labels = curves(X)
    best = ks[int(np.argmax(silhouettes))]
    print(f"{name}: {truth} is the truth, the silhouette says {best}")
    scatter.scatter(*X.T, c=labels, s=1, cmap="Paired")
    scatter.set(title=f"{name}, cut into {best}", xticks=[], yticks=[], aspect="equal")
    elbow.plot(ks, inertias, "o-", markersize=4)
    elbow.set(title="inertia", xlabel="k", ylim=(0, None))
    silhouette.plot(ks, silhouettes, "o-", markersize=4, color="tab:red")
    silhouette.set(title="mean silhouette", xlabel="k", ylim=(0, 0.85))
    for axis in (elbow, silhouette):
        axis.axvline(truth, color="gray", linestyle=":")
plt.show()

# %%
# How they fail
# -------------
#
# The dotted line is the true number.
#
# - **Six clusters.** The inertia bends at 6, and the silhouette is largest there.
# - **Six that overlap.** The inertia bends softly, somewhere between 4 and 7. The silhouette is low for every k, and
#   prefers another number.
# - **Two rings.** No k is right: K-means cuts the plane into convex cells, and a ring is not convex. Both aids still
#   answer, and do not say that the question was wrong.
#
# So look at the height of the silhouette, not only at its maximum, and repeat it with another sample. If there is no
# clear answer, let the purpose decide: the size of a palette, of a codebook, of a team.
#
# On a GPU
# --------
#
# The fits run there if there is one. With a CuPy or torch array, ``labels_`` stays on the GPU. scikit-learn's
# silhouette needs host memory, so copy only the sample of the rows and their labels to it.
