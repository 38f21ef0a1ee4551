"""
Color quantization
==================

A photograph has 96,615 different colors. K-means finds the few that represent it best.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

from tsapps import TSKMeans

photograph = load_sample_image("china.jpg")
pixels = photograph.reshape(-1, 3).astype(np.float32)
pixels.shape

# %%
# Every pixel is a sample with three features: red, green and blue. A fit assigns each pixel to one of k colors.

figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained")
axes[0, 0].imshow(photograph)
axes[0, 0].set_title("the photograph")
for axis, k in zip(axes.flat[1:], (4, 16, 64), strict=True):
    kmeans = TSKMeans(n_clusters=k, random_state=0).fit(pixels)
    colors = kmeans.cluster_centers_.round().astype(np.uint8)
    axis.imshow(colors[kmeans.labels_].reshape(photograph.shape))
    axis.set_title(f"{k} colors")
for axis in axes.flat:
    axis.axis("off")

# %%
# With 16 colors, the red of the roofs is lost: few pixels have it, and K-means minimizes the sum over all pixels. With
# 64, it is back.
#
# On a GPU the same lines run there: pass a CuPy or torch array, or leave it to ``device="auto"``.
