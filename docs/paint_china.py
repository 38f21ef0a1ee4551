"""Plot the result of `make demo`: the photograph, the photograph in its 64 colors, and the share of each color.

Usage: ``python docs/paint_china.py data-kmeans china-64.png``
"""

import sys

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

GAP, STRIP = 10, 40


def paint(labels: np.ndarray, centers: np.ndarray) -> Image.Image:
    """Return the picture for labels (273280,) and centers (k, 3) of china.jpg's pixels."""
    photograph = load_sample_image("china.jpg")
    height, width, _ = photograph.shape
    colours = centers.round().astype(np.uint8)
    canvas = np.full((height + GAP + STRIP, 2 * width + GAP, 3), 255, np.uint8)
    canvas[:height, :width] = photograph
    canvas[:height, width + GAP :] = colours[labels].reshape(photograph.shape)
    dark_to_light = np.argsort(centers.sum(axis=1))
    share = np.bincount(labels, minlength=len(centers))[dark_to_light].cumsum() / len(labels)
    columns = np.searchsorted(share, (np.arange(canvas.shape[1]) + 0.5) / canvas.shape[1])
    canvas[height + GAP :] = colours[dark_to_light][columns]
    return Image.fromarray(canvas)


if __name__ == "__main__":
    directory, out = sys.argv[1:]
    paint(np.load(f"{directory}/labels.npy"), np.load(f"{directory}/centers.npy")).save(out)
