"""
Data larger than memory
=======================

``open_matrix`` reads a file in blocks of rows, and ``TSKMeans`` clusters it without loading it. Here a process that may
allocate 600 MB clusters a file of 800 MB, and its memory is measured.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from tsapps import TSKMeans, open_matrix

# %%
# A large file
# ------------
#
# It is written in blocks, too: 1,000,000 rows of 200 numbers, around eight centers.

directory = tempfile.TemporaryDirectory()
path = Path(directory.name) / "points.npy"
rng = np.random.default_rng(0)
truth = 0.3 * rng.standard_normal((8, 200), dtype=np.float32)
points = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(1_000_000, 200))
for start in range(0, len(points), 25_000):
    noise = rng.standard_normal((25_000, 200), dtype=np.float32)
    points[start : start + 25_000] = truth[rng.integers(8, size=25_000)] + noise
del points

# %%
# Blocks of rows
# --------------
#
# ``open_matrix`` reads only the header. ``blocks`` yields all rows in order, and ``rows`` returns those that you name.
# Only one block is in memory at a time:

matrix = open_matrix(path)
print(f"{matrix.shape[0]:,} × {matrix.shape[1]} {matrix.dtype}, {matrix.nbytes / 1e6:.0f} MB")

mean = sum(block.sum(axis=0, dtype=np.float64) for start, block in matrix.blocks(20_000)) / matrix.shape[0]
print(f"means of the first columns: {mean[:4].round(3)}")

# %%
# Initial centers
# ---------------
#
# k-means++ reads the file once for each center. Here, initial centers come from a fit of 10,000 random rows.
# ``init="k-means||"`` is another way: it makes five passes, whatever k is.

some = matrix.rows(np.sort(rng.choice(matrix.shape[0], 10_000, replace=False)))
first = TSKMeans(n_clusters=8, random_state=0).fit(some).cluster_centers_
np.save(path.with_name("first.npy"), first)

# %%
# Two fits, measured
# ------------------
#
# In Python, the fit of the whole file is ``TSKMeans(n_clusters=8, init=first).fit(matrix)``. The command line does the
# same, and as a process of its own its memory is easy to measure.
#
# tsapps keeps the data if the whole fit takes at most half of the available memory. Otherwise, each pass reads the file
# again. It respects the limits of containers, of Slurm, and of ``ulimit``, which the second run uses.


def measured_fit(result, limit=None):
    """Cluster the file in another process, and return its times and its resident memory in MB."""
    command = [sys.executable, "-m", "tsapps", "kmeans", path, "--k", "8", "--init", path.with_name("first.npy")]
    command += ["--device", "cpu", "--out", path.with_name(result), "--quiet"]

    def lower_limit():
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    began, times, resident = time.perf_counter(), [], []
    process = subprocess.Popen(command, env=environment, preexec_fn=lower_limit)
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        for line in status.splitlines():
            if line.startswith("VmRSS:"):
                times.append(time.perf_counter() - began)
                resident.append(int(line.split()[1]) * 1024 / 1e6)
        time.sleep(0.01)
    if process.returncode != 0:
        raise RuntimeError(f"tsapps kmeans failed with exit code {process.returncode}")
    return times, resident


kept = measured_fit("kept")
streamed = measured_fit("streamed", limit=600_000_000)  # twice what it needs

for name, (_, resident) in {"without a limit": kept, "600 MB allowed": streamed}.items():
    print(f"{name}: at most {max(resident):.0f} MB in memory")
for name in ("labels", "centers"):
    results = [np.load(path.with_name(run) / f"{name}.npy") for run in ("kept", "streamed")]
    print(f"same {name}: {np.array_equal(*results)}")

# %%

figure, axis = plt.subplots(figsize=(8, 5.4), layout="constrained")
axis.fill_between(*kept, alpha=0.3, color="tab:gray")
axis.plot(*kept, color="tab:gray", label="without a limit: the file is read once and kept")
axis.fill_between(*streamed, alpha=0.5, color="tab:blue")
axis.plot(*streamed, color="tab:blue", label="600 MB allowed: every pass reads the file")
axis.axhline(path.stat().st_size / 1e6, color="tab:red", linestyle="--", label="size of the file")
axis.set(xlabel="seconds", ylabel="resident memory, MB", ylim=(0, 1200), xlim=(0, None))
axis.legend(loc="upper center", ncols=2, fontsize="small")
plt.show()

# %%
# A streamed fit holds a few blocks of rows, and some bytes for each row of the file. It gives the same bits.
#
# On a GPU
# --------
#
# The limit is then the memory of the GPU. Data that does not fit on it is streamed from the file, or from host memory.
# Nothing in the calls changes; leave out ``--device cpu``.

directory.cleanup()
