"""Launches of the kernels of labels.cuh over label arrays: counts per label, and replacement of labels.

CuPy's own functions are not used, because they take seconds to compile.
"""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.load import load_kernels
from tsapps.kernels.runtime.machine import Machine

__all__ = ["launch_over_labels"]

_NAMES = ("change_labels", "count_labels")
# Number of threads per block; and maximum number of blocks per multiprocessor, all of which are resident.
_THREADS, _BLOCKS = 256, 4


def launch_over_labels(machine: Machine, name: str, labels: Any, *arguments: Any) -> None:
    """Launch a kernel of labels.cuh over an array of labels.

    Parameters
    ----------
    machine : Machine
    name : {"change_labels", "count_labels"}
    labels : array of shape (n,), int32
    *arguments
        The arguments of the kernel after `labels` and n.
    """
    kernels = dict(zip(_NAMES, load_kernels(machine, "data/labels.cuh", *_NAMES), strict=True))
    blocks = min(-(-len(labels) // _THREADS), _BLOCKS * machine.gpu.multiprocessors)
    kernels[name]((blocks,), (_THREADS,), (labels, np.int64(len(labels)), *arguments))
