"""
Protecting a checkpoint
=======================

A disk or a memory module flips bits. A checksum file finds them, says where they are, and restores them.
"""

import matplotlib.pyplot as plt
import numpy as np

from tsapps import abft

rng = np.random.default_rng(0)
weights = rng.standard_normal((2048, 512)).astype(np.float32)

# %%
# Encode the matrix once, right after it was written. The checksums take a few per cent of its size.

sidecar = abft.encode(weights)
f"{sidecar}"

# %%
# Later, bits have changed. Here a whole line of 64 bytes and 40 single bits do.

damaged = weights.copy()
damaged[700, 96:112] = 0
places = rng.choice(weights.size, 40, replace=False)
damaged.reshape(-1).view(np.uint32)[places] ^= 1 << 22
verdict = abft.verify(damaged, sidecar)
f"{verdict}"

# %%
# ``correct`` returns the matrix as it was, bit for bit, or raises an error. It never guesses.

restored = abft.correct(damaged, sidecar)
assert restored.tobytes() == weights.tobytes()

figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained", sharey=True)
for axis, matrix, title in zip(axes, (damaged, restored), ("damaged", "corrected"), strict=True):
    rows, columns = np.nonzero(matrix.view(np.uint32) != weights.view(np.uint32))
    axis.scatter(columns, rows, s=12, color="tab:red")
    axis.set(title=f"{title}: {len(rows)} elements differ", xlabel="column", xlim=(0, 512), ylim=(2048, 0))
axes[0].set_ylabel("row")

# %%
# The command line does the same with files of any size: ``tsapps abft-encode``, ``abft-verify`` and ``abft-correct``.
