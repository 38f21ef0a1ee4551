"""Launches of labels.cuh: labels that are counted and compared. CuPy's own kernels for it take seconds to compile."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.load import load_kernels
from tsapps.kernels.runtime.machine import Machine

__all__ = ["launch_over_labels"]

_NAMES = ("change_labels", "count_labels")
# Threads of a block, and blocks a multiprocessor, as many as are resident.
_THREADS, _BLOCKS = 256, 4


def launch_over_labels(machine: Machine, name: str, labels: Any, *arguments: Any) -> None:
    """Launch a kernel of labels.cuh, by its name, over labels (n,), int32; `arguments` follow these and n."""
    kernels = dict(zip(_NAMES, load_kernels(machine, "data/labels.cuh", *_NAMES), strict=True))
    blocks = min(-(-len(labels) // _THREADS), _BLOCKS * machine.gpu.multiprocessors)
    kernels[name]((blocks,), (_THREADS,), (labels, np.int64(len(labels)), *arguments))
