"""
Protecting a checkpoint
=======================

Disks and memory modules flip bits. A checksum file of 2 % of the data detects them, locates them, and restores the
original bits: in Python, and at the command line.
"""

import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from tsapps import abft

# %%
# Encode
# ------
#
# The checkpoint is one matrix, like the position table of a language model: 2,048 positions, 512 features. Encode it
# right after it was written.

position, feature = np.arange(2048)[:, np.newaxis], np.arange(512)
weights = np.sin(position / 10_000 ** (feature // 2 / 256) + feature % 2 * np.pi / 2).astype(np.float32)
sidecar = abft.encode(weights, code="exact")
print(sidecar)
print(f"{sidecar.exact.nbytes / weights.nbytes:.1%} of the data")

# %%
# Inject faults
# -------------
#
# ``abft.inject`` damages an array like defective hardware: 60 flipped bits, and an overwritten run of 128 bytes.

rng = np.random.default_rng(7)
damaged = weights.copy()
for _ in range(60):
    abft.inject(damaged, "bit", rng)
abft.inject(damaged, "burst", rng, size=128)
print(f"{np.count_nonzero(damaged.view(np.uint32) != weights.view(np.uint32))} elements differ")

# %%
# Verify and correct
# ------------------
#
# ``verify`` needs the damaged matrix and the sidecar, and nothing else. ``correct`` returns a repaired copy.

verdict = abft.verify(damaged, sidecar)
print(verdict)
for fault in verdict.faults[:3]:
    row, column = divmod(fault.offset // 4, 512)
    print(f"row {row}, column {column}: found {fault.found:#010x}, was {fault.was:#010x}")

repaired = abft.correct(damaged, sidecar)
print("repaired bit for bit:", np.array_equal(repaired.view(np.uint32), weights.view(np.uint32)))

# %%
# The verdict has the words before and after, so it tells which bits were flipped. Bits 0 to 22 are the fraction of a
# float32 number, 23 to 30 its exponent, and 31 its sign. A flip in the exponent multiplies or divides the number
# by up to 2¹²⁸.

elements = [divmod(fault.offset // 4, 512) for fault in verdict.faults]
differences = [fault.found ^ fault.was for fault in verdict.faults]
flips = [(at[1], bit) for at, bits in zip(elements, differences, strict=True) for bit in range(32) if bits >> bit & 1]
rows, columns = np.array(elements).T

figure, axes = plt.subplots(1, 3, figsize=(10, 6.6), layout="constrained")
for axis, matrix, title in ((axes[0], damaged, "damaged"), (axes[2], repaired, "repaired")):
    shown = np.clip(np.nan_to_num(matrix), -2, 2)
    axis.imshow(shown, aspect="auto", cmap="RdBu", vmin=-1.5, vmax=1.5, interpolation="nearest")
    axis.set(title=title, xlabel="column")
axes[0].set(ylabel="row")
axes[0].scatter(columns, rows, s=36, facecolors="none", edgecolors="black", linewidths=1.2)
for begin, end, color, name in (
    (0, 23, "tab:blue", "fraction"),
    (23, 31, "tab:red", "exponent"),
    (31, 32, "tab:green", "sign"),
):
    axes[1].axhspan(begin - 0.5, end - 0.5, color=color, alpha=0.15)
    axes[1].text(520, (begin + end - 1) / 2, name, color=color, va="center", rotation=0 if name == "sign" else 270)
axes[1].scatter(*np.array(flips).T, s=7, color="black")
axes[1].set(
    title=f"{len(flips)} flipped bits, located", xlabel="column", ylabel="bit", xlim=(0, 512), ylim=(-0.5, 31.5)
)
plt.show()

# %%
# What it refuses
# ---------------
#
# The code repairs two words of 32 bits in each block of 512, and refuses more, unless its sums agree by chance. Nothing
# is written then, and the verdict names the regions. Here 32 × 32 elements became zeros:

lost = weights.copy()
lost[1000:1032, 200:232] = 0
print(abft.verify(lost, sidecar))
try:
    abft.correct(lost, sidecar)
except abft.AmbiguousError as error:
    print(textwrap.fill(f"refused: {error}", 80))

# %%
# At the command line
# -------------------
#
# The commands do the same with files of any size. ``abft-verify`` exits with 0 if every bit is unchanged, and with 3
# if not, so a scheduler can run it every night.

directory = tempfile.TemporaryDirectory()
np.save(Path(directory.name) / "weights.npy", weights)


def tsapps(*arguments):
    """Run ``tsapps`` with these arguments in the temporary directory, and print its output and its exit code."""
    print("$ tsapps", *arguments)
    command = [sys.executable, "-m", "tsapps", *arguments]
    ended = subprocess.run(command, cwd=directory.name, stdout=subprocess.PIPE, text=True, check=False)
    print(ended.stdout + f"exit code {ended.returncode}\n")


tsapps("abft-encode", "weights.npy")
tsapps("abft-inject", "weights.npy", "--count", "3", "--in-place")
tsapps("abft-verify", "weights.npy")
tsapps("abft-correct", "weights.npy", "--in-place")
tsapps("abft-verify", "weights.npy", "--quiet")

# %%
# On a GPU
# --------
#
# A CuPy or torch array on a GPU is encoded, verified and corrected there. For files, ``--device auto`` uses a GPU of
# compute capability 8.0 or higher. The sums are the same, so a sidecar of one device serves on every other.

directory.cleanup()
