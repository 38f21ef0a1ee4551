"""
Many small problems
===================

``kmeans_batched`` fits many problems of one shape in one call. Here each tile of a photograph gets its own four colors.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_sample_image

from tsapps import kmeans_batched

photograph = load_sample_image("flower.jpg")[:384, :512]
size = 64
rows, columns = 384 // size, 512 // size
tiles = photograph.reshape(rows, size, columns, size, 3).swapaxes(1, 2)
X = tiles.reshape(rows * columns, size * size, 3).astype(np.float32)
X.shape

# %%
# The first axis numbers the problems. The result has one clustering for each.

found = kmeans_batched(X, 4, random_state=0)
found

# %%
# Problem i gets the result of ``TSKMeans(4, n_init=1, random_state=0 + i).fit(X[i])``. On a GPU, all problems run at
# once.

labels, centers = np.asarray(found.labels), np.asarray(found.centers)
quantized = np.take_along_axis(centers, labels[:, :, np.newaxis].astype(np.int64), axis=1)
picture = quantized.reshape(rows, columns, size, size, 3).swapaxes(1, 2).reshape(photograph.shape)

figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for axis, image, title in zip(
    axes, (photograph, picture.round().astype(np.uint8)), ("the photograph", "four colors per tile"), strict=True
):
    axis.imshow(image)
    axis.set_title(title)
    axis.axis("off")
