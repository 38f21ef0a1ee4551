"""X in host memory or in a file, pinned in place, for kernels that read it through the link."""

from typing import Any

import numpy as np

from tsapps.apps.kmeans.data.rows import Rows, in_place
from tsapps.kernels.arrays import address
from tsapps.kernels.runtime.machine import Machine
from tsapps.kernels.runtime.pin_in_place import PinningError
from tsapps.kernels.system.host_memory import available_host_memory
from tsapps.kernels.system.mapped_files import mapped_files
from tsapps.kernels.system.printable import shown

__all__ = ["is_half", "pin", "pinnable"]

# Maximum size of a file that is pinned, as a fraction of the available host memory: no other program can use its pages.
_MOST_PINNED = 0.75


def is_half(x_dtype: np.dtype, dtype: np.dtype) -> bool:
    """Return True if X has a 16-bit floating-point type, which kernels of the working type `dtype` read as it is."""
    return x_dtype.name in ("float16", "bfloat16") and dtype == np.float32


def pinnable(source: Rows, dtype: np.dtype) -> np.ndarray | None:
    """Return X as one array in host memory or of a mapped file, or None if kernels cannot read it as such.

    Parameters
    ----------
    source : Rows
    dtype : {float32, float64}
        The working dtype.
    """
    readable = source.device is None and (source.dtype == dtype or is_half(source.dtype, dtype))
    return in_place(source) if readable else None


def pin(array: np.ndarray, machine: Machine) -> Any:
    """Pin an array that `pinnable` returned; return the `PinnedArray`.

    CUDA does not return from pinning pages of a file that are copied when they are written. So a file is pinned only if
    it is mapped for reading, and not privately.

    Raises
    ------
    PinningError
        If the first pages cannot be pinned, if they are those of a file that is mapped privately or for writing, or if
        those of a file would take most of the host memory.
    """
    files = [file for file in mapped_files(address(array), address(array) + array.nbytes) if not file.is_shared_memory]
    for file in files:
        if file.writable or not file.shared:
            how = "for writing" if file.writable else "privately"
            raise PinningError(f"its file {shown(file.path)} is mapped {how}: map it for reading, as open_matrix does")
    available = available_host_memory() if files else 0
    if files and array.nbytes > _MOST_PINNED * available:
        raise PinningError(f"its file has {array.nbytes} bytes, of which {available} fit in host memory")
    return machine.pin_in_place(array)
