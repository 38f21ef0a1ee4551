"""
Many small problems
===================

``kmeans_batched`` fits many problems of one shape in one call: one per customer, per sensor, or per subspace of a
codebook. Here each tile of a photograph gets four colors of its own.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

from tsapps import TSKMeans, kmeans_batched

# %%
# One problem per tile
# --------------------
#
# The first axis of X numbers the problems: 192 tiles of 1,024 pixels with 3 colors.

photograph = load_sample_image("flower.jpg")[11:395, 64:576]
size, (height, width, _) = 32, photograph.shape
grid = photograph.reshape(height // size, size, width // size, size, 3).swapaxes(1, 2)
X = grid.reshape(-1, size * size, 3).astype(np.float32)
print(X.shape)

# %%
# Fit all of them
# ---------------
#
# Labels, centers, inertia and number of iterations have the same first axis.

found = kmeans_batched(X, 4, random_state=0)
print(found)
print("labels ", found.labels.shape)
print("centers", found.centers.shape)

# %%
# Problem i has the result of ``TSKMeans`` with ``random_state=0 + i``:

seven = TSKMeans(n_clusters=4, n_init=1, random_state=0 + 7).fit(X[7])
print("same labels:", np.array_equal(seven.labels_, found.labels[7]))

# %%
# What it is good for
# -------------------
#
# Four colors cannot show the whole photograph. Four colors of its own suffice for a tile.

whole = TSKMeans(n_clusters=4, random_state=0).fit(X.reshape(-1, 3))
of_whole = whole.cluster_centers_[whole.labels_].reshape(X.shape)
of_tiles = np.take_along_axis(found.centers, found.labels[:, :, np.newaxis], axis=1)


def picture(tiles):
    """Return the photograph that consists of these tiles."""
    return tiles.reshape(grid.shape).swapaxes(1, 2).reshape(photograph.shape).round().astype(np.uint8)


figure, axes = plt.subplots(2, 2, figsize=(9, 6.6), layout="constrained")
for axis, image, title in (
    (axes[0, 0], photograph, "the photograph"),
    (axes[0, 1], picture(of_whole), "four colors"),
    (axes[1, 0], picture(of_tiles), "four colors per tile"),
):
    axis.imshow(image)
    axis.set_title(title)
    axis.axis("off")

errors = np.sqrt(found.inertia / (3 * size * size)).reshape(height // size, width // size)
shown = axes[1, 1].imshow(errors, extent=(0, width, height, 0), cmap="magma")
axes[1, 1].set_title("root-mean-square error of each tile")
axes[1, 1].axis("off")
figure.colorbar(shown, ax=axes[1, 1], shrink=0.8)
plt.show()

# %%
# Groups of different sizes, such as the orders of each customer, are not of one shape. Draw the same number of rows
# from each, or fit one ``TSKMeans`` per group.
#
# On a GPU
# --------
#
# A CPU fits one problem after the other. A GPU iterates all of them at once, each until it converges. That is where
# ``kmeans_batched`` pays most: one small problem cannot fill a GPU. Pass a CuPy or torch array, and the results stay
# there.
