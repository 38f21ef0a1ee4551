"""
Larger than memory
==================

A file is read in blocks of rows, so that it need not fit in memory. Any format that tsapps reads can be clustered so.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from tsapps import TSKMeans, open_matrix

# %%
# A file of two million points, written block by block.

folder = tempfile.TemporaryDirectory()
path = Path(folder.name) / "points.npy"
rng = np.random.default_rng(0)
points = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(2_000_000, 2))
for start in range(0, len(points), 500_000):
    angles = rng.uniform(0, 2 * np.pi, 500_000)
    radii = rng.choice([1.0, 2.0, 3.0], 500_000) + 0.1 * rng.standard_normal(500_000)
    points[start : start + 500_000] = np.column_stack([radii * np.cos(angles), radii * np.sin(angles)])
points.flush()
del points

# %%
# ``open_matrix`` reads the header only. Each pass of the fit reads the file once.

matrix = open_matrix(path)
f"{matrix.name}: {matrix.shape} {matrix.dtype}"

# %%

kmeans = TSKMeans(n_clusters=12, init="k-means||", n_init=1, max_iter=20, random_state=0).fit(matrix)

_, block = next(iter(matrix.blocks(20_000)))
figure, axis = plt.subplots(figsize=(5, 5), layout="constrained")
axis.scatter(*np.asarray(block).T, c=kmeans.labels_[: len(block)], s=1, cmap="tab20")
axis.scatter(*kmeans.cluster_centers_.T, marker="x", color="black")
axis.set_aspect("equal")
axis.set_title("the first 20,000 rows, and the centers")

# %%
# ``init="k-means||"`` needs a handful of passes over the file, k-means++ one for each center.
#
# At the command line: ``tsapps kmeans points.npy --k 12 --init 'k-means||'``.

folder.cleanup()

# %%
# On a GPU
# --------
#
# Every pass streams the blocks of the file through host memory to the GPU, where cuBLAS computes the scores.
