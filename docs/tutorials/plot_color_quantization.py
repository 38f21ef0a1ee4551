"""
Color quantization
==================

A photograph has tens of thousands of different colors. K-means finds the few that represent it best.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

from tsapps import TSKMeans

photograph = load_sample_image("china.jpg")
pixels = photograph.reshape(-1, 3).astype(np.float32)
print(f"{len(pixels):,} pixels, {len(np.unique(pixels, axis=0)):,} different colors")

# %%
# Fit
# ---
#
# Every pixel is a sample with three features: red, green and blue. The centers of the clusters are the new colors, and
# a pixel gets the color of its nearest center. ``random_state`` makes the result repeatable.

fits = {k: TSKMeans(n_clusters=k, random_state=0).fit(pixels) for k in (4, 16, 64)}
for k, fit in fits.items():
    print(f"{k:2} colors: {fit.n_iter_:2} iterations, root-mean-square error {np.sqrt(fit.inertia_ / pixels.size):.1f}")

# %%
# Paint
# -----
#
# Below each picture are its colors, from dark to light, each as wide as its share of the pixels.


def palette(fit, width, height=30):
    """Return a strip that shows the colors of a fit, each as wide as its share of the pixels."""
    dark_to_light = np.argsort(fit.cluster_centers_.sum(axis=1))
    shares = np.bincount(fit.labels_, minlength=fit.n_clusters)[dark_to_light].cumsum() / len(fit.labels_)
    color_of_column = dark_to_light[np.searchsorted(shares, (np.arange(width) + 0.5) / width)]
    return np.broadcast_to(fit.cluster_centers_[color_of_column], (height, width, 3))


def paint(fit):
    """Return the photograph in the colors of a fit, above its palette."""
    picture = fit.cluster_centers_[fit.labels_].reshape(photograph.shape)
    gap = np.full((10, photograph.shape[1], 3), 255)
    return np.concatenate([picture, gap, palette(fit, photograph.shape[1])]).round().astype(np.uint8)


figure, axes = plt.subplots(2, 2, figsize=(9, 6.8), layout="constrained")
axes[0, 0].imshow(photograph)
axes[0, 0].set_title("the photograph")
for axis, (k, fit) in zip(axes.flat[1:], fits.items(), strict=True):
    axis.imshow(paint(fit))
    axis.set_title(f"{k} colors")
for axis in axes.flat:
    axis.axis("off")
plt.show()

# %%
# Four colors show the scene, but without red: K-means minimizes a sum over all pixels, and few pixels are red. Sixteen
# have a dark red, and visible bands in the sky. With 64, few of the differences are visible at this size.
#
# On a GPU
# --------
#
# The script stays as it is: ``device="auto"`` takes a GPU if there is one, and NumPy arrays come back. A CuPy or torch
# array stays on its GPU, and ``labels_`` and ``cluster_centers_`` are then of the same library.
